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
    /// What a log-in must prove.
    pub(crate) auth: Auth,
    /// What the user has.
    pub(crate) factor: Factor,
    /// Who says which user has which keys.
    pub(crate) mapping: Mapping,
    /// The question for an OTP.
    pub(crate) prompt: String,
    /// The question for a password.
    pub(crate) password_prompt: String,
    pub(crate) echo: Echo,
    pub(crate) prompting: Prompting,
    /// Letters of the public name, where a password stands before the OTP.
    pub(crate) name_length: usize,
    /// A user without tokens is left to the other modules.
    pub(crate) nullok: bool,
    pub(crate) programs: Programs,
}

/// What a log-in must prove.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Auth {
    Otp,
    Password,
    /// One of both: what is typed may be either.
    Either,
    Both,
}

impl Auth {
    const ALL: [Self; 4] = [Self::Otp, Self::Password, Self::Either, Self::Both];

    /// Its word, here and in the question to the daemon.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Otp => "otp",
            Self::Password => "password",
            Self::Either => "either",
            Self::Both => "both",
        }
    }
}

/// What proves that the user has something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Factor {
    /// What is typed: `mode=client`.
    Otp,
    /// A key at this machine: `mode=challenge-response`.
    Key,
}

/// Programs that ask a key at this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Programs {
    /// `ykchalresp`
    pub(crate) response: PathBuf,
    /// `ykinfo`
    pub(crate) serial: PathBuf,
}

/// Who says which user has which keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Mapping {
    /// The daemon's store.
    Store,
    /// A file of the operator: `authfile`.
    File(PathBuf),
    /// `~/.yubico/authorized_yubikeys` of the user: `user_authfile`.
    Home,
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
            auth: Auth::Otp,
            factor: Factor::Otp,
            mapping: Mapping::Store,
            prompt: "One-time password: ".to_owned(),
            password_prompt: "Password: ".to_owned(),
            echo: Echo::Off,
            prompting: Prompting::Always,
            name_length: NAME_LENGTH,
            nullok: false,
            programs: Programs {
                response: PathBuf::from("/usr/bin/ykchalresp"),
                serial: PathBuf::from("/usr/bin/ykinfo"),
            },
        };
        let mut is_asked = false;
        let mut of_otp = None;
        for word in words {
            let (name, value) = word.split_once('=').unwrap_or((word, ""));
            if matches!(name, "authfile" | "user_authfile" | "prompt" | "verbose_otp" | "token_id_length") {
                of_otp = Some(word);
            }
            match (name, value) {
                ("socket", path) if path.starts_with('/') => options.socket = path.into(),
                ("daemon_user", user) if !user.is_empty() => options.daemon = Some(user.to_owned()),
                // Two that say whose a key is would have to agree.
                ("authfile" | "user_authfile", _) if options.mapping != Mapping::Store => {
                    return Err(word.clone());
                }
                ("authfile", path) if path.starts_with('/') => options.mapping = Mapping::File(path.into()),
                ("user_authfile", "") => options.mapping = Mapping::Home,
                ("auth", name) => {
                    let auth = Auth::ALL.into_iter().find(|auth| auth.word() == name);
                    options.auth = auth.ok_or_else(|| word.clone())?;
                }
                // A space ends a word in pam.d.
                ("prompt", text) if !text.is_empty() => {
                    options.prompt = format!("{} ", text.replace('_', " "));
                    is_asked = true;
                }
                ("password_prompt", text) if !text.is_empty() => {
                    options.password_prompt = format!("{} ", text.replace('_', " "));
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
                ("mode", "client") => options.factor = Factor::Otp,
                ("mode", "challenge-response") => options.factor = Factor::Key,
                ("chalresp_program", path) if path.starts_with('/') => {
                    options.programs.response = path.into()
                }
                ("serial_program", path) if path.starts_with('/') => options.programs.serial = path.into(),
                // The daemon has its own log.
                ("debug", "") => {}
                _ => return Err(word.clone()),
            }
        }
        if options.factor == Factor::Key {
            // No OTP is typed, and a key that is there would do in place of a password.
            if let Some(word) = of_otp {
                return Err(word.clone());
            }
            if matches!(options.auth, Auth::Password | Auth::Either) {
                return Err(format!("auth={} beside mode=challenge-response", options.auth.word()));
            }
        }
        if options.auth == Auth::Either && !is_asked {
            options.prompt = "Password or one-time password: ".to_owned();
        }
        Ok(options)
    }
}
