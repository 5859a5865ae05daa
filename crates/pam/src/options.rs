//! The words behind the module in a file of pam.d.

use std::path::PathBuf;

/// Letters of the public name of a YubiKey as they are delivered.
const NAME_LENGTH: usize = 12;

/// What the module shall do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Options {
    /// The daemon's socket.
    pub(crate) socket: PathBuf,
    /// The user that the daemon runs as, if it is not root.
    pub(crate) daemon: Option<String>,
    /// Which user has which keys; without it the daemon's store says so.
    pub(crate) authfile: Option<PathBuf>,
    pub(crate) prompt: String,
    pub(crate) echo: Echo,
    pub(crate) prompting: Prompting,
    /// Letters of the public name, where a password stands before the OTP.
    pub(crate) name_length: usize,
    /// A user without tokens is left to the other modules.
    pub(crate) nullok: bool,
}

/// Whether the terminal shows what is typed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Echo {
    Off,
    On,
}

/// When the user is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Prompting {
    /// If no module before has asked: `try_first_pass`.
    IfNeeded,
    /// Never: `use_first_pass`.
    Never,
    /// Always: `always_prompt`, the default.
    Always,
}

impl Options {
    /// Reads the words. The error is the first one that is unknown: what an administrator wrote must not be left out silently.
    pub(crate) fn read(words: &[String]) -> Result<Self, String> {
        let mut options = Self {
            socket: PathBuf::from("/run/penstock/auth.sock"),
            daemon: Some("penstock".to_owned()),
            authfile: None,
            prompt: "One-time password: ".to_owned(),
            echo: Echo::Off,
            prompting: Prompting::Always,
            name_length: NAME_LENGTH,
            nullok: false,
        };
        for word in words {
            let (name, value) = word.split_once('=').unwrap_or((word, ""));
            match (name, value) {
                ("socket", path) if path.starts_with('/') => options.socket = path.into(),
                ("daemon_user", user) if !user.is_empty() => options.daemon = Some(user.to_owned()),
                ("authfile", path) if path.starts_with('/') => options.authfile = Some(path.into()),
                // A space ends a word in pam.d.
                ("prompt", text) if !text.is_empty() => {
                    options.prompt = format!("{} ", text.replace('_', " "))
                }
                ("verbose_otp", "") => options.echo = Echo::On,
                ("try_first_pass", "") => options.prompting = Prompting::IfNeeded,
                ("use_first_pass", "") => options.prompting = Prompting::Never,
                ("always_prompt", "") => options.prompting = Prompting::Always,
                ("nullok", "") => options.nullok = true,
                ("token_id_length", length) => {
                    let length = length.parse().ok().filter(|length| *length <= 32);
                    options.name_length = length.ok_or_else(|| word.clone())?;
                }
                // The daemon has its own log.
                ("debug", "") | ("mode", "client") => {}
                _ => return Err(word.clone()),
            }
        }
        Ok(options)
    }
}
