//! Host that the operator asks for, and facts about the local machine.

use std::net::IpAddr;

use super::jump::{self, Hop, Jump};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Local {
    pub user: String,
    pub uid: u32,
    pub home: String,
    pub hostname: String,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Asked {
    /// Host as the operator typed it.
    pub host: String,
    /// Login from the command line (`user@host`, `-l`).
    pub user: Option<String>,
    /// Port from the command line (`-p`).
    pub port: Option<u16>,
    /// Jump hosts from the command line (`-J`).
    pub jump: Option<Jump>,
    /// Command to run on the host; `None` for a shell.
    pub command: Option<String>,
}

impl Asked {
    /// Parses `host`, `user@host` or `ssh://user@host:port`; IPv6 addresses also as `[::1]` and `[::1]:port`.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        if text.starts_with("ssh://") {
            let Hop { user, host, port } = Hop::parse(text)?;
            return Some(Self { host, user, port, ..Self::default() });
        }
        let (user, host) = match text.rsplit_once('@') {
            Some((user, host)) => (Some(user), host),
            None => (None, text),
        };
        let (host, port) = jump::bracketed(host).unwrap_or_else(|| (host.to_owned(), None));
        let good = jump::is_safe_host(&host) && user.is_none_or(jump::is_safe_user);
        good.then(|| Self { host, user: user.map(str::to_owned), port, ..Self::default() })
    }
}

/// Local machine, for conditions of `Match` and for paths.
pub trait Machine {
    /// Runs a command in the shell of the user. `Ok(true)` for exit status 0.
    ///
    /// # Errors
    /// The command cannot be run, or a signal ended the command.
    fn exec(&self, command: &str) -> Result<bool, String>;

    /// Addresses of the interfaces of the local machine.
    ///
    /// # Errors
    /// The addresses cannot be listed.
    fn addresses(&self) -> Result<Vec<IpAddr>, String>;

    fn variable(&self, name: &str) -> Option<String>;
}
