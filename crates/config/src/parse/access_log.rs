//! `[access-log]`.

use logic::syslog::{FACILITIES, LONGEST_APP_NAME, SEVERITIES, is_field};
use text::nearest::nearest;

use super::address;
use super::parser::Parser;
use super::refused::Refused;
use crate::de::{At, Key};
use crate::quote::quote;
use crate::raw::{PathText, RawAccessLog, RawSyslog, SizeText};
use crate::types::{AccessLog, BackendAddress, LogFormat, LogTarget, Syslog, SyslogAddress};

impl Parser<'_> {
    pub(super) fn access_log(&mut self, raw: &RawAccessLog) -> Option<AccessLog> {
        let target = raw.target.as_ref().and_then(|target| self.log_target(target, raw));
        let format = raw.format.as_ref().map(|format| match format.value.as_str() {
            "json" => LogFormat::Json,
            _ => LogFormat::Text,
        });
        if let (Some(syslog), Some(target)) = (&raw.syslog, &target)
            && !matches!(target, LogTarget::Syslog(_))
            && Self::is_given(&syslog.value)
        {
            let draft =
                self.report.at_key(self.nodes, syslog.id, "does nothing unless target is \"syslog+...\"");
            drop(draft.hint("target = \"syslog+udp://10.0.0.9:514\" sends there").warning());
        }
        Some(AccessLog { target: target?, format: format? })
    }

    /// Whether a key has another value than its default.
    fn is_given(raw: &RawSyslog) -> bool {
        let is = |key: &Key<String>, usual: &str| key.as_ref().is_none_or(|key| key.value == usual);
        let usual_length = raw.max_length.as_ref().is_none_or(|length| length.value.as_ref() == "8KiB");
        !(is(&raw.facility, "local0")
            && is(&raw.severity, "info")
            && is(&raw.app_name, "penstock")
            && usual_length)
    }

    fn log_target(&mut self, target: &At<PathText>, raw: &RawAccessLog) -> Option<LogTarget> {
        let text = target.value.as_ref();
        Some(match text {
            "stdout" => LogTarget::Stdout,
            "stderr" => LogTarget::Stderr,
            "off" => LogTarget::Off,
            path if path.starts_with('/') => LogTarget::File(self.file(target)?),
            syslog if syslog.starts_with("syslog") => {
                let to = self.read(target, receiver);
                let settings = raw.syslog.as_ref().and_then(|syslog| self.syslog(&syslog.value));
                let (to, settings) = (to?, settings?);
                LogTarget::Syslog(Syslog { to, ..settings })
            }
            other => {
                let near = nearest(other, ["stdout", "stderr", "off"]);
                let draft = self.refuse(
                    target,
                    "is not \"stdout\", \"stderr\", \"off\", an absolute path or \"syslog+...\"",
                );
                drop(match near {
                    Some(near) => draft.hint_from_value(format!("did you mean {}?", quote(near))),
                    None => draft.hint("a file is named from the root: \"/var/log/penstock/access.log\""),
                });
                return None;
            }
        })
    }

    /// Reads everything but the address of the receiver.
    fn syslog(&mut self, raw: &RawSyslog) -> Option<Syslog> {
        let severity = number(&SEVERITIES, &raw.severity);
        self.messages(&raw.facility, severity, &raw.app_name, &raw.max_length)
    }

    /// Reads what messages have, but not the address of their receiver.
    pub(super) fn messages(
        &mut self,
        facility: &Key<String>,
        severity: Option<u8>,
        app_name: &Key<String>,
        max_length: &Key<SizeText>,
    ) -> Option<Syslog> {
        let facility = number(&FACILITIES, facility);
        let app_name = app_name.as_ref().and_then(|name| {
            if is_field(&name.value, LONGEST_APP_NAME) {
                return Some(name.value.clone());
            }
            let why = format!(
                "is not a name of a program: 1 to {LONGEST_APP_NAME} visible ASCII characters without blanks"
            );
            drop(self.refuse(name, &why));
            None
        });
        let max_length = self.size(max_length, 1024, 64 * 1024);
        Some(Syslog {
            to: SyslogAddress::Unix(std::path::PathBuf::new()),
            facility: facility?,
            severity: severity?,
            app_name: app_name?,
            max_length: usize::try_from(max_length?).ok()?,
        })
    }
}

fn number(names: &[&str], name: &Key<String>) -> Option<u8> {
    let name = name.as_ref()?.value.as_str();
    names.iter().position(|known| *known == name).and_then(|at| u8::try_from(at).ok())
}

/// Reads `syslog+udp://HOST:PORT`, `syslog+tcp://HOST:PORT` or `syslog+unix:/PATH`.
pub(super) fn receiver(text: &str) -> Result<SyslogAddress, Refused> {
    if let Some(path) = text.strip_prefix("syslog+unix:") {
        return address::unix_path(path).map(SyslogAddress::Unix);
    }
    let (scheme, rest) = text.split_once("://").unwrap_or_default();
    let make: fn(String, u16) -> SyslogAddress = match scheme {
        "syslog+udp" => |host, port| SyslogAddress::Udp { host, port },
        "syslog+tcp" => |host, port| SyslogAddress::Tcp { host, port },
        _ => {
            return Err(Refused::new("names no receiver of syslog messages").in_general(
                "write \"syslog+udp://HOST:514\", \"syslog+tcp://HOST:601\" or \"syslog+unix:/dev/log\"",
            ));
        }
    };
    let refused = |reason: &'static str| {
        Err(Refused::new(reason).in_general("write it as \"syslog+udp://10.0.0.9:514\", with a port"))
    };
    match address::backend(rest) {
        Ok(BackendAddress::Ip(address)) => Ok(make(address.ip().to_string(), address.port())),
        Ok(BackendAddress::Name { host, port }) => Ok(make(host, port)),
        Ok(_) => refused("has no host and port"),
        Err(_) => refused("has no valid host and port"),
    }
}
