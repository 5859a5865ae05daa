//! The options of `penstock ctl` for a server on another machine.

use std::path::PathBuf;
use std::time::Duration;

use access::Mechanism;
use clap::Args;
use config::types::Identity;
use tls::control_client::Settings;
use zeroize::Zeroizing;

use crate::cmd::user;
use crate::ctl::client::{Client, PasswordSource};
use crate::ctl::remote::{LogInError, MECHANISMS, Remote, Start, Tickets};
use crate::output::{Failure, plain};

/// Port of `control.listen`, by convention.
const PORT: u16 = 4040;

#[derive(Clone, Debug, Args)]
pub(super) struct Host {
    /// Server on another machine, at `listen` of its `[control]` [default port: 4040]
    #[arg(long, value_name = "HOST[:PORT]", global = true, conflicts_with_all = ["socket", "config"])]
    host: Option<String>,
    /// Name of the user at that server; a ticket of Kerberos must be one of this user too [default: the variable USER, or whom a
    /// ticket is of]
    #[arg(long, value_name = "NAME", global = true)]
    user: Option<String>,
    /// Take the password from the first line of this file, and use no ticket of Kerberos; without it the terminal is asked
    #[arg(long, value_name = "FILE", global = true)]
    password_file: Option<PathBuf>,
    /// Log in with the bearer token in the first line of this file, which only its owner may read; `-` is standard input
    #[arg(long, value_name = "FILE", global = true)]
    token_file: Option<PathBuf>,
    /// Take a one-time password, if the server wants one for a change, from the first line of this file; `-` is standard
    /// input. Without it the terminal is asked
    #[arg(long, value_name = "FILE", global = true)]
    otp_file: Option<PathBuf>,
    /// File with the CA of the server's certificate, or with that certificate itself [default: the CAs of the operating system]
    #[arg(long, value_name = "FILE", global = true)]
    ca: Option<PathBuf>,
    /// Client certificate to log in with (EXTERNAL), with --key
    #[arg(long, value_name = "FILE", global = true)]
    certificate: Option<PathBuf>,
    /// Private key of --certificate
    #[arg(long, value_name = "FILE", global = true)]
    key: Option<PathBuf>,
    /// File with the passphrase of --key, if it is encrypted
    #[arg(long, value_name = "FILE", global = true)]
    key_passphrase_file: Option<PathBuf>,
    /// Name in the server's certificate, if it is not that of --host
    #[arg(long, value_name = "NAME", global = true)]
    server_name: Option<String>,
    /// Begin TLS by the command STARTTLS, for a server with tls-start = "starttls"
    #[arg(long, global = true)]
    starttls: bool,
    /// Log in by this mechanism only: EXTERNAL, GS2-KRB5-PLUS, SCRAM-SHA-256-PLUS, GS2-KRB5, SCRAM-SHA-256 or
    /// OAUTHBEARER [default: the best one]
    #[arg(long, value_name = "NAME", global = true, value_parser = mechanism)]
    mechanism: Option<Mechanism>,
    /// First part of the name of the service in Kerberos, as `service` of the server's configuration has it [default: host]
    #[arg(long, value_name = "NAME", global = true)]
    kerberos_service: Option<String>,
}

fn mechanism(name: &str) -> Result<Mechanism, String> {
    let found = MECHANISMS.into_iter().find(|mechanism| mechanism.name().eq_ignore_ascii_case(name));
    found.ok_or_else(|| format!("there are {}", MECHANISMS.map(Mechanism::name).join(", ")))
}

impl Host {
    /// The server on another machine, if one is named.
    pub(super) fn remote(&self) -> Result<Option<Remote>, Failure> {
        self.check()?;
        let Some(text) = &self.host else { return Ok(None) };
        let (host, port) = address(text)
            .ok_or_else(|| Failure::usage(format_args!("--host {}: it is HOST or HOST:PORT", plain(text))))?;
        let user = self.user.clone().or_else(|| std::env::var("USER").ok());
        let tickets = match (&self.password_file, &self.user) {
            (Some(_), _) => Tickets::Unused,
            (None, Some(_)) => Tickets::OfUser,
            (None, None) => Tickets::OfAnyone,
        };
        let start = if self.starttls { Start::StartTls } else { Start::Implicit };
        let name = self.server_name.clone().unwrap_or_else(|| host.clone());
        let identity = self.certificate.clone().zip(self.key.clone());
        let key_passphrase_file = self.key_passphrase_file.clone();
        let identity = identity.map(|(certificate, key)| Identity { certificate, key, key_passphrase_file });
        let tls = Settings { name, authority: self.ca.clone(), identity };
        let service = self.kerberos_service.clone().unwrap_or_else(|| "host".to_owned());
        let token = self.token_file.as_deref().map(user::token::read).transpose()?;
        Ok(Some(Remote { host, port, tls, start, user, tickets, service, token, mechanism: self.mechanism }))
    }

    /// Refuses options that need others. The parser cannot: it forgets what stands before the subcommand when it looks at
    /// what stands behind.
    fn check(&self) -> Result<(), Failure> {
        let (certificate, key) = (self.certificate.is_some(), self.key.is_some());
        let given = [
            ("--user", self.user.is_some()),
            ("--password-file", self.password_file.is_some()),
            ("--token-file", self.token_file.is_some()),
            ("--otp-file", self.otp_file.is_some()),
            ("--ca", self.ca.is_some()),
            ("--certificate", certificate),
            ("--key", key),
            ("--key-passphrase-file", self.key_passphrase_file.is_some()),
            ("--server-name", self.server_name.is_some()),
            ("--starttls", self.starttls),
            ("--mechanism", self.mechanism.is_some()),
            ("--kerberos-service", self.kerberos_service.is_some()),
        ];
        let first = given.iter().find(|(_, is_given)| *is_given).filter(|_| self.host.is_none());
        let lacks = match (first, certificate, key) {
            (Some((option, _)), ..) => Some((*option, "--host HOST")),
            (None, true, false) => Some(("--certificate", "--key FILE")),
            (None, false, true) => Some(("--key", "--certificate FILE")),
            (None, false, false) if self.key_passphrase_file.is_some() => {
                Some(("--key-passphrase-file", "--key FILE"))
            }
            _ => None,
        };
        if let Some((option, other)) = lacks {
            return Err(Failure::usage(format_args!("{option} needs {other}")));
        }
        if self.token_file.is_some() && (self.password_file.is_some() || certificate) {
            return Err(Failure::usage("--token-file does not go with --password-file or --certificate"));
        }
        Ok(())
    }

    /// The way to that server.
    pub(super) fn door(&self, remote: Remote, timeout: Duration) -> Door {
        Door { host: self.clone(), remote, timeout, password: None }
    }

    fn one_time_password(&self, remote: &Remote) -> PasswordSource {
        let (file, user, host) = (self.otp_file.clone(), remote.user.clone(), remote.host.clone());
        PasswordSource(Box::new(move || {
            let typed = match &file {
                Some(file) => user::secret::first_line(file, "one-time password"),
                None => {
                    let user = user.as_deref().unwrap_or_default();
                    let question = format!("One-time password of {} at {}", plain(user), plain(&host));
                    let asked = user::ask_unprepared(&question, "one-time password", "--otp-file FILE");
                    asked.map(|typed| typed.to_string())
                }
            };
            typed.map_err(|failure| failure.to_string())
        }))
    }
}

/// A server on another machine, with what a second log-in needs.
pub(super) struct Door {
    host: Host,
    remote: Remote,
    timeout: Duration,
    /// As it was typed at the first log-in.
    password: Option<Zeroizing<String>>,
}

impl Door {
    pub(super) fn log_in(&mut self) -> Result<Client, Failure> {
        let Self { host, remote, timeout, password: typed } = self;
        let mut failure = None;
        let mut password = || -> Result<String, String> {
            if let Some(known) = &*typed {
                return Ok(known.to_string());
            }
            let password = match &host.password_file {
                Some(file) => user::password_of(file),
                None => {
                    let user = remote.user.as_deref().unwrap_or_default();
                    user::ask(&format!("Password of {} at {}", plain(user), plain(&remote.host)))
                }
            };
            let password = password.map_err(|why| {
                failure = Some(why);
                String::new()
            })?;
            *typed = Some(password.clone().into());
            Ok(password)
        };
        let client = remote.log_in(*timeout, &mut password);
        match (client, failure) {
            (Ok(client), _) => Ok(client.with_password_source(host.one_time_password(remote))),
            (Err(LogInError::Password(_, None)), Some(failure)) => Err(failure),
            (Err(LogInError::Password(_, ticket)), Some(failure)) => {
                let told = LogInError::Password(failure.to_string(), ticket).to_string();
                Err(Failure::usage(told.lines().map(plain).collect::<Vec<_>>().join("\n")))
            }
            (Err(error), _) => {
                let lines: Vec<_> = error.to_string().lines().map(plain).collect();
                Err(Failure::runtime(lines.join("\n")))
            }
        }
    }
}

/// Splits `HOST`, `HOST:PORT`, `[ADDRESS]` and `[ADDRESS]:PORT`; a bare IPv6 address is a host.
fn address(text: &str) -> Option<(String, u16)> {
    if text.parse::<std::net::Ipv6Addr>().is_ok() {
        return Some((text.to_owned(), PORT));
    }
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, port) = rest.split_once(']')?;
            let port = if port.is_empty() { None } else { Some(port.strip_prefix(':')?) };
            (host, port)
        }
        None => text.split_once(':').map_or((text, None), |(host, port)| (host, Some(port))),
    };
    let port = port.map_or(Some(PORT), |port| port.parse().ok().filter(|port| *port > 0))?;
    (!host.is_empty() && !host.contains(char::is_whitespace)).then(|| (host.to_owned(), port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_split_from_its_port() {
        let read = |text| address(text).map(|(host, port)| format!("{host} {port}"));
        assert_eq!(read("gw").as_deref(), Some("gw 4040"));
        assert_eq!(read("gw:1").as_deref(), Some("gw 1"));
        assert_eq!(read("::1").as_deref(), Some("::1 4040"));
        assert_eq!(read("[::1]").as_deref(), Some("::1 4040"));
        assert_eq!(read("[::1]:99").as_deref(), Some("::1 99"));
        for bad in ["", ":1", "gw:", "gw:x", "gw:0", "gw:65536", "[::1", "[::1]x", "g w"] {
            assert_eq!(read(bad), None, "{bad}");
        }
    }
}
