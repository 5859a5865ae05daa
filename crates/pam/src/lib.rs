//! `pam_penstock.so`: asks the daemon over a Unix socket whether what a user typed is good. It has no secret, no thread and no
//! dependency: it is loaded into sshd, sudo and login. Any fault is a refusal, within two seconds.
//!
//! - `crates/pam/src/options.rs`: the words behind the module in a file of pam.d
//! - `crates/pam/src/typed.rs`: what of the typed text is the password, and what the OTP
//! - `crates/pam/src/secret.rs`: what is overwritten before its memory is given back
//! - `crates/pam/src/mapping.rs`: the authfile of pam_yubico: which user has which keys
//! - `crates/pam/src/ask.rs`: the question to the daemon and its answer
//! - `crates/pam/src/ffi.rs`: the functions of libpam; the only file with `unsafe`

mod ask;
mod ffi;
mod mapping;
mod options;
mod secret;
mod typed;

use std::ffi::{c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};

use ask::{Answer, Question};
use ffi::{Handle, Item, Return};
use mapping::Keys;
use options::{Auth, Echo, Mapping, Options, Prompting};
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
    };
    match ask::ask(&options.socket, options.daemon.as_deref(), &question) {
        Ok(Answer::Good) => Return::Success,
        Ok(Answer::NoToken) if options.nullok => Return::Ignore,
        Ok(Answer::NoToken) => Return::UserUnknown,
        Ok(Answer::Bad) => Return::AuthenticationError,
        Err(why) => {
            handle.log(&format!("{}: {why}; {user} is not let in", options.socket.display()));
            Return::AuthInfoUnavailable
        }
    }
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
