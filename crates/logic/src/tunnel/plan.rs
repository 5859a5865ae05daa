//! A tunnel as the configuration describes it: only values that can work exist here.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::template::Template;

/// `[tunnel.NAME]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tunnel {
    /// NAME.
    pub name: Arc<str>,
    /// The SSH host, by the name that is its identity.
    pub host: String,
    /// What is forwarded, at least one, in the order of the file.
    pub forwards: Vec<Forward>,
    /// How often a silent connection is asked whether it lives.
    pub keep_alive: Duration,
    /// Questions without an answer after which it counts as dead.
    pub keep_alive_count: u32,
    /// Longest time until the connection stands.
    pub connect_timeout: Duration,
    /// How often the services are asked again while the tunnel is up.
    pub check_interval: Duration,
    /// What is mounted through it.
    pub mount: Option<Mount>,
    /// The command of `tunnel with NAME` without a command.
    pub job: Option<Vec<String>>,
}

/// What is mounted once the services answer, and taken away again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    /// An existing, empty directory.
    pub point: PathBuf,
    /// Mounts it.
    pub mount: Vec<Template>,
    /// Unmounts it, unless somebody still uses it.
    pub unmount: Vec<Template>,
    /// Takes it away although somebody uses it.
    pub unmount_lazy: Vec<Template>,
    /// Longest time for each of these commands.
    pub timeout: Duration,
}

/// `[tunnel.NAME.forward.NAME]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Forward {
    /// NAME.
    pub name: Arc<str>,
    /// From where to where.
    pub way: Way,
    /// How the service at its end is asked whether it works.
    pub check: Check,
}

/// From where to where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Way {
    /// We listen here, the host connects.
    Local {
        /// Where we listen; port 0 lets the kernel choose.
        listen: Listen,
        /// Where the host connects; names are resolved there.
        connect: Endpoint,
    },
    /// The host listens, we connect.
    Remote {
        /// Where the host listens.
        listen: Listen,
        /// Where we connect.
        connect: Endpoint,
    },
    /// We are a SOCKS5 proxy, the host connects to where clients ask.
    Dynamic {
        /// Where we listen.
        listen: Listen,
    },
}

impl Way {
    /// The word of the configuration.
    #[must_use]
    pub fn word(&self) -> &'static str {
        match self {
            Self::Local { .. } => "local",
            Self::Remote { .. } => "remote",
            Self::Dynamic { .. } => "dynamic",
        }
    }

    /// Where somebody listens.
    #[must_use]
    pub fn listen(&self) -> &Listen {
        match self {
            Self::Local { listen, .. } | Self::Remote { listen, .. } | Self::Dynamic { listen } => listen,
        }
    }

    /// Where connections go, if that is known before.
    #[must_use]
    pub fn connect(&self) -> Option<&Endpoint> {
        match self {
            Self::Local { connect, .. } | Self::Remote { connect, .. } => Some(connect),
            Self::Dynamic { .. } => None,
        }
    }
}

/// Where to listen. `Display` gives the configuration's spelling.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Listen {
    /// An address; port 0 lets the kernel choose.
    Tcp(SocketAddr),
    /// A Unix socket, made with mode 0600.
    Unix(PathBuf),
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// Where to connect. `Display` gives the configuration's spelling.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Endpoint {
    /// Host and port; the side that connects resolves the name.
    Tcp {
        /// Name or address, without brackets.
        host: String,
        /// Never 0.
        port: u16,
    },
    /// A Unix socket.
    Unix(PathBuf),
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { host, port } if host.contains(':') => write!(f, "[{host}]:{port}"),
            Self::Tcp { host, port } => write!(f, "{host}:{port}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// How a service is asked whether it works.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Check {
    /// Not at all.
    None,
    /// A connection opens, and is not closed at once.
    Tcp,
    /// It speaks first: SSH, SMTP, MySQL, ...
    Banner,
    /// It answers `GET path` with a status from 200 to 399.
    Http {
        /// Path of the question.
        path: String,
    },
    /// It answers the null procedure of NFS (RFC 7530 section 16.1, RFC 1813 section 3.3.0).
    NfsNull,
}

impl Check {
    /// The word of the configuration.
    #[must_use]
    pub fn word(&self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Tcp => "tcp",
            Self::Banner => "banner",
            Self::Http { .. } => "http",
            Self::NfsNull => "nfs-null",
        }
    }
}

/// What the names in `{ }` stand for once everything listens.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Values(BTreeMap<String, String>);

impl Values {
    /// The names that commands of this tunnel may use: for a forward `nfs` its address or path, `nfs.host` and `nfs.port`
    /// where it listens on an address, and `mount-point`.
    #[must_use]
    pub fn names(forwards: &[Forward], mount: MountPoint<'_>) -> Vec<String> {
        let listens = forwards.iter().filter(|forward| !matches!(forward.way, Way::Remote { .. }));
        let listens = listens.map(|forward| (forward.name.as_ref(), forward.way.listen().clone()));
        Self::new(listens, mount).0.into_keys().collect()
    }

    /// The values, from where each forward listens in the end.
    #[must_use]
    pub fn new<'a>(listens: impl Iterator<Item = (&'a str, Listen)>, mount: MountPoint<'_>) -> Self {
        let mut values = BTreeMap::new();
        for (name, listen) in listens {
            match listen {
                Listen::Tcp(address) => {
                    values.insert(name.to_owned(), address.to_string());
                    values.insert(format!("{name}.host"), address.ip().to_string());
                    values.insert(format!("{name}.port"), address.port().to_string());
                }
                Listen::Unix(path) => {
                    values.insert(name.to_owned(), path.display().to_string());
                }
            }
        }
        if let MountPoint::At(point) = mount {
            values.insert(MOUNT_POINT.to_owned(), point.display().to_string());
        }
        Self(values)
    }

    /// What a name stands for.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// The same for the environment of commands: `TUNNEL_NFS`, `TUNNEL_NFS_PORT`, `TUNNEL_MOUNT_POINT`.
    pub fn variables(&self) -> impl Iterator<Item = (String, &str)> {
        let capital = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_uppercase() } else { '_' };
        self.0.iter().map(move |(name, value)| {
            (format!("TUNNEL_{}", name.chars().map(capital).collect::<String>()), value.as_str())
        })
    }
}

/// Whether there is one, and where.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MountPoint<'a> {
    /// Nothing is mounted.
    None,
    /// Here.
    At(&'a std::path::Path),
}

/// The name of the mount point in commands.
pub const MOUNT_POINT: &str = "mount-point";

/// Whether a tunnel can be named so: names become names of files.
#[must_use]
pub fn is_name(name: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
    (1..=64).contains(&name.len()) && name.bytes().all(fits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_learn_ports_and_paths_by_name_and_by_variable() {
        let listens = [
            ("nfs", Listen::Tcp("127.0.0.1:4049".parse().unwrap())),
            ("my-db", Listen::Unix("/run/db.sock".into())),
        ];
        let values = Values::new(listens.into_iter(), MountPoint::At(std::path::Path::new("/mnt")));
        assert_eq!(values.get("nfs.port"), Some("4049"));
        assert_eq!(values.get("my-db"), Some("/run/db.sock"));
        let variables: Vec<_> = values.variables().collect();
        assert!(variables.contains(&("TUNNEL_NFS_PORT".to_owned(), "4049")), "{variables:?}");
        assert!(variables.contains(&("TUNNEL_MY_DB".to_owned(), "/run/db.sock")), "{variables:?}");
        assert!(variables.contains(&("TUNNEL_MOUNT_POINT".to_owned(), "/mnt")), "{variables:?}");
    }

    #[test]
    fn endpoints_are_written_as_the_file_has_them() {
        let v6 = Endpoint::Tcp { host: "::1".into(), port: 22 };
        assert_eq!(v6.to_string(), "[::1]:22");
        assert_eq!(Endpoint::Unix("/run/x".into()).to_string(), "unix:/run/x");
    }
}
