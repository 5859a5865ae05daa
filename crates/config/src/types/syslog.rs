//! A receiver of syslog messages.

use std::fmt;
use std::path::PathBuf;

/// `target = "syslog+..."` with `syslog` of `[access-log]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Syslog {
    pub to: SyslogAddress,
    /// Number of the facility, from 0 to 23.
    pub facility: u8,
    /// Number of the severity, from 0 to 7.
    pub severity: u8,
    pub app_name: String,
    /// Largest message in bytes.
    pub max_length: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SyslogAddress {
    /// Host is a name or an IP address.
    Udp {
        host: String,
        port: u16,
    },
    Tcp {
        host: String,
        port: u16,
    },
    /// Socket of datagrams, or of streams.
    Unix(PathBuf),
}

impl fmt::Display for SyslogAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (scheme, host, port) = match self {
            Self::Udp { host, port } => ("udp", host, port),
            Self::Tcp { host, port } => ("tcp", host, port),
            Self::Unix(path) => return write!(f, "syslog+unix:{}", path.display()),
        };
        match host.contains(':') {
            true => write!(f, "syslog+{scheme}://[{host}]:{port}"),
            false => write!(f, "syslog+{scheme}://{host}:{port}"),
        }
    }
}
