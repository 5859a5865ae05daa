//! `pam_penstock.so`: asks the daemon over a Unix socket whether what a user typed is good. It has no secret, no thread and no
//! dependency: it is loaded into sshd, sudo and login. Any fault is a refusal, within two seconds where no key must be touched.
//!
//! - `crates/pam/src/options.rs`: the words behind the module in a file of pam.d
//! - `crates/pam/src/typed.rs`: what of the typed text is the password, and what the OTP
//! - `crates/pam/src/secret.rs`: what is overwritten before its memory is given back
//! - `crates/pam/src/mapping.rs`: the authfile of pam_yubico: which user has which keys
//! - `crates/pam/src/ask.rs`: the question to the daemon and its answer
//! - `crates/pam/src/key.rs`: the programs that ask a key at this machine
//! - `crates/pam/src/ffi.rs`: the functions of libpam; the only file with `unsafe`

mod ask;
mod ffi;
mod key;
mod mapping;
mod options;
mod secret;
mod typed;

use std::ffi::{c_char, c_int, c_void};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use ask::{Answer, Asked, Question, Responded, Told};
use ffi::{Handle, Item, Return};
use mapping::Keys;
use options::{Auth, Echo, Factor, Mapping, Options, Prompting};
use secret::Secret;

/// Entry point: is the user who he says he is? A fault in the module is a refusal.
#[unsafe(no_mangle)]
pub extern "C" fn pam_sm_authenticate(
    handle: *mut c_void,
    _flags: c_int,
    count: c_int,
    arguments: *const *const c_char,
) -> c_int {
    let run = || match Handle::of(handle) {
        Some(handle) => authenticate(&handle, &ffi::words(count, arguments)),
        None => Return::ServiceError,
    };
    catch_unwind(AssertUnwindSafe(run)).unwrap_or(Return::ServiceError).code()
}

/// Entry point: nothing is granted beside the log-in.
#[unsafe(no_mangle)]
pub extern "C" fn pam_sm_setcred(
    _handle: *mut c_void,
    _flags: c_int,
    _count: c_int,
    _arguments: *const *const c_char,
) -> c_int {
    Return::Success.code()
}

/// Asks for what the log-in must prove, and for the daemon's word on it.
fn authenticate(handle: &Handle, words: &[String]) -> Return {
    let options = match Options::read(words) {
        Ok(options) => options,
        Err(word) => {
            handle.log(&format!("unknown option {word}: no user is let in until it is taken away"));
            return Return::ServiceError;
        }
    };
    let Some(user) = handle.user() else { return Return::UserUnknown };
    if options.factor == Factor::Key {
        return authenticate_by_key(handle, &options, &user);
    }
    let mapped = match &options.mapping {
        Mapping::Store => None,
        Mapping::File(path) => Some((path.display().to_string(), mapping::read(path, &user), "operator")),
        Mapping::Home => {
            let keys =
                ffi::account(&user).map_or(Ok(Keys::None), |account| mapping::read_own(&account, &user));
            Some((format!("~{user}/.yubico/authorized_yubikeys"), keys, "user"))
        }
    };
    let (keys, keys_of) = match mapped {
        None => (None, "operator"),
        Some((_, Ok(Keys::None), _)) if options.nullok => return Return::Ignore,
        Some((file, Ok(Keys::None), _)) if options.auth != Auth::Either => {
            handle.log(&format!("{file} names no key of {user}"));
            return Return::UserUnknown;
        }
        // The password is left.
        Some((_, Ok(Keys::None), of)) => (Some(Vec::new()), of),
        Some((_, Ok(Keys::These(keys)), of)) => (Some(keys), of),
        Some((file, Err(why), _)) => {
            handle.log(&format!("cannot read {file}: {why}"));
            return Return::AuthInfoUnavailable;
        }
    };
    let Some(typed) = typed(handle, &options) else { return Return::AuthenticationError };
    let question = Question {
        user: &user,
        service: &handle.item(Item::Service).unwrap_or_default(),
        from: &handle.item(Item::RemoteHost).unwrap_or_default(),
        auth: options.auth.word(),
        otp: typed.otp.as_deref(),
        password: typed.password.as_deref(),
        keys: keys.as_deref().filter(|_| options.auth != Auth::Password),
        keys_of,
        responded: None,
    };
    let answer = ask::ask(&options.socket, options.daemon.as_deref(), &question);
    answer.map_or_else(|why| unasked(handle, &options, &user, &why), |answer| told(&options, answer))
}

/// What the daemon's word means for the log-in.
fn told(options: &Options, answer: Answer) -> Return {
    match answer {
        Answer::Good => Return::Success,
        Answer::NoToken if options.nullok => Return::Ignore,
        Answer::NoToken => Return::UserUnknown,
        Answer::Bad | Answer::WhichKey => Return::AuthenticationError,
    }
}

/// Logs that the daemon gave no answer that counts, and refuses the user.
fn unasked(handle: &Handle, options: &Options, user: &str, why: &io::Error) -> Return {
    handle.log(&format!("{}: {why}; {user} is not let in", options.socket.display()));
    Return::AuthInfoUnavailable
}

/// Asks the key at this machine what the daemon says, and the daemon whether the responses are good.
fn authenticate_by_key(handle: &Handle, options: &Options, user: &str) -> Return {
    let from = handle.item(Item::RemoteHost).unwrap_or_default();
    if !from.is_empty() {
        let why = "a key at this machine does not prove who is there, so mode=challenge-response is for local log-ins";
        handle.log(&format!("{user} comes from {from}: {why}"));
        return Return::AuthenticationError;
    }
    let (socket, daemon) = (&options.socket, options.daemon.as_deref());
    let mut question = Question {
        user,
        service: &handle.item(Item::Service).unwrap_or_default(),
        from: "",
        auth: options.auth.word(),
        otp: None,
        password: None,
        keys: None,
        keys_of: "operator",
        responded: None,
    };
    let mut said = ask::challenge(socket, daemon, &question, None);
    if let Ok(Told::Nothing(Answer::WhichKey)) = said {
        let serial = match key::serial(&options.programs.serial) {
            Ok(serial) => serial,
            Err(why) => return silent(handle, &options.programs.serial, user, &why),
        };
        said = ask::challenge(socket, daemon, &question, Some(&serial));
    }
    let asked: Asked = match said {
        Ok(Told::Ask(asked)) => asked,
        Ok(Told::Nothing(answer)) => return told(options, answer),
        Err(why) => return unasked(handle, options, user, &why),
    };
    let password = match options.auth {
        Auth::Both => match first_text(handle, options, &options.password_prompt, Echo::Off) {
            Some(password) => Some(password),
            None => return Return::AuthenticationError,
        },
        Auth::Otp | Auth::Password | Auth::Either => None,
    };
    if let Some(password) = &password {
        // For the modules behind this one.
        handle.set_password(password);
    }
    let [response, next] = match key::respond(&options.programs.response, &asked) {
        Ok(responses) => responses,
        Err(why) => return silent(handle, &options.programs.response, user, &why),
    };
    question.password = password.as_deref();
    question.responded = Some(Responded { challenge: &asked.challenge, response: &response, next: &next });
    let answer = ask::ask(socket, daemon, &question);
    answer.map_or_else(|why| unasked(handle, options, user, &why), |answer| told(options, answer))
}

/// Logs that the program of the key gave no response, and refuses the user.
fn silent(handle: &Handle, program: &Path, user: &str, why: &io::Error) -> Return {
    handle.log(&format!("{}: {why}; {user} is not let in", program.display()));
    Return::AuthenticationError
}

/// What the user typed.
struct Typed {
    otp: Option<Secret>,
    password: Option<Secret>,
}

/// Takes what an earlier module asked for, or asks, until there is what the log-in must prove.
fn typed(handle: &Handle, options: &Options) -> Option<Typed> {
    let copy = |text: &str| Some(Secret::new(text.to_owned()));
    let question = match options.auth {
        Auth::Otp | Auth::Either => &options.prompt,
        Auth::Password | Auth::Both => &options.password_prompt,
    };
    let echo = if options.auth == Auth::Otp { options.echo } else { Echo::Off };
    let text = first_text(handle, options, question, echo)?;
    let parts = typed::split(&text, options.name_length);
    let password = match options.auth {
        Auth::Otp => parts.password,
        Auth::Password => Some(&*text),
        Auth::Either | Auth::Both => parts.password.or(Some(&*text)),
    };
    if let Some(password) = password {
        // For the modules behind this one.
        handle.set_password(password);
    }
    let typed = match options.auth {
        Auth::Otp => Typed { otp: copy(parts.otp), password: None },
        Auth::Password => Typed { otp: None, password: copy(&text) },
        Auth::Either => Typed { otp: copy(parts.otp), password: password.and_then(copy) },
        Auth::Both if parts.password.is_some() => {
            Typed { otp: copy(parts.otp), password: password.and_then(copy) }
        }
        Auth::Both if options.prompting == Prompting::Never => return None,
        Auth::Both => {
            let otp = handle.prompt(&options.prompt, options.echo).map(Secret::new)?;
            Typed { otp: Some(otp), password: copy(&text) }
        }
    };
    Some(typed)
}

/// What an earlier module asked for, or what the user types now.
fn first_text(handle: &Handle, options: &Options, question: &str, echo: Echo) -> Option<Secret> {
    let before = match options.prompting {
        Prompting::Always => None,
        Prompting::IfNeeded | Prompting::Never => {
            handle.item(Item::Password).filter(|text| !text.is_empty()).map(Secret::new)
        }
    };
    match (before, options.prompting) {
        (Some(text), _) => Some(text),
        (None, Prompting::Never) => None,
        (None, _) => handle.prompt(question, echo).map(Secret::new),
    }
}
