//! `pam_penstock.so`: asks the daemon over a Unix socket whether what a user typed is good. It has no secret, no thread and no
//! dependency: it is loaded into sshd, sudo and login. Any fault is a refusal, within two seconds.
//!
//! - `crates/pam/src/options.rs`: the words behind the module in a file of pam.d
//! - `crates/pam/src/typed.rs`: what of the typed text is the password, and what the OTP
//! - `crates/pam/src/mapping.rs`: the authfile of pam_yubico: which user has which keys
//! - `crates/pam/src/ask.rs`: the question to the daemon and its answer
//! - `crates/pam/src/ffi.rs`: the functions of libpam; the only file with `unsafe`

mod ask;
mod ffi;
mod mapping;
mod options;
mod typed;

use std::ffi::{c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};

use ask::{Answer, Question};
use ffi::{Handle, Item, Return};
use mapping::Keys;
use options::{Options, Prompting};

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

/// Asks for the OTP and for the daemon's word on it.
fn authenticate(handle: &Handle, words: &[String]) -> Return {
    let options = match Options::read(words) {
        Ok(options) => options,
        Err(word) => {
            handle.log(&format!("unknown option {word}: no user is let in until it is taken away"));
            return Return::ServiceError;
        }
    };
    let Some(user) = handle.user() else { return Return::UserUnknown };
    let keys = match &options.authfile {
        None => None,
        Some(path) => match mapping::read(path, &user) {
            Ok(Keys::None) if options.nullok => return Return::Ignore,
            Ok(Keys::None) => {
                handle.log(&format!("{} names no key of {user}", path.display()));
                return Return::UserUnknown;
            }
            Ok(Keys::These(keys)) => Some(keys),
            Err(why) => {
                handle.log(&format!("cannot read {}: {why}", path.display()));
                return Return::AuthInfoUnavailable;
            }
        },
    };
    let Some(text) = typed_text(handle, &options) else { return Return::AuthenticationError };
    let parts = typed::split(&text, options.name_length);
    if let Some(password) = parts.password {
        // For the modules behind this one.
        handle.set_password(password);
    }
    let question = Question {
        user: &user,
        service: &handle.item(Item::Service).unwrap_or_default(),
        from: &handle.item(Item::RemoteHost).unwrap_or_default(),
        otp: parts.otp,
        keys: keys.as_deref(),
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

/// What an earlier module asked for, or what the user types now.
fn typed_text(handle: &Handle, options: &Options) -> Option<String> {
    let before = match options.prompting {
        Prompting::Always => None,
        Prompting::IfNeeded | Prompting::Never => handle.item(Item::Password).filter(|text| !text.is_empty()),
    };
    match (before, options.prompting) {
        (Some(text), _) => Some(text),
        (None, Prompting::Never) => None,
        (None, _) => handle.prompt(&options.prompt, options.echo),
    }
}
