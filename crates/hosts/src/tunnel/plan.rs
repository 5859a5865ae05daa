//! Tunnels of the configuration, with validated values.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::template::Template;
pub use super::template::Values;

/// `[tunnel.NAME]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tunnel {
    pub name: Arc<str>,
    /// Name of the SSH host, which is its identity.
    pub host: String,
    /// Forwards in the order of the file, at least one.
    pub forwards: Vec<Forward>,
    /// Silence of the connection before a keep-alive request.
    pub keep_alive: Duration,
    /// Number of keep-alive requests without an answer after which the connection counts as broken.
    pub keep_alive_count: u32,
    pub connect_timeout: Duration,
    /// Interval of the checks of the services while the tunnel is up.
    pub check_interval: Duration,
    pub mount: Option<Mount>,
    /// Job of `tunnel with NAME` without a command.
    pub job: Option<Vec<String>>,
}

/// Mount that follows successful checks of the services, and ends with the tunnel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    /// An existing, empty directory.
    pub point: PathBuf,
    pub mount: Vec<Template>,
    /// Command that unmounts, and fails while a process uses the mount.
    pub unmount: Vec<Template>,
    /// Command that unmounts lazily, although a process uses the mount.
    pub unmount_lazy: Vec<Template>,
    /// Timeout of each of these commands.
    pub timeout: Duration,
}

/// `[tunnel.NAME.forward.NAME]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Forward {
    pub name: Arc<str>,
    pub way: Way,
    pub check: Check,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Way {
    /// Penstock listens, the SSH host connects.
    Local {
        /// Address to listen on; for port 0 the kernel chooses a port.
        listen: Listen,
        /// Target of the SSH host, which resolves the name.
        connect: Endpoint,
    },
    /// The SSH host listens, Penstock connects.
    Remote { listen: Listen, connect: Endpoint },
    /// Penstock is a SOCKS5 proxy; the SSH host connects to the targets of the clients.
    Dynamic { listen: Listen },
}

impl Way {
    #[must_use]
    pub fn word(&self) -> &'static str {
        match self {
            Self::Local { .. } => "local",
            Self::Remote { .. } => "remote",
            Self::Dynamic { .. } => "dynamic",
        }
    }

    #[must_use]
    pub fn listen(&self) -> &Listen {
        match self {
            Self::Local { listen, .. } | Self::Remote { listen, .. } | Self::Dynamic { listen } => listen,
        }
    }

    /// Target of the connections; `None` if the clients choose the targets.
    #[must_use]
    pub fn connect(&self) -> Option<&Endpoint> {
        match self {
            Self::Local { connect, .. } | Self::Remote { connect, .. } => Some(connect),
            Self::Dynamic { .. } => None,
        }
    }
}

/// Place to listen. `Display` writes the syntax of the configuration.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Listen {
    /// Address; for port 0 the kernel chooses a port.
    Tcp(SocketAddr),
    /// Unix socket with mode 0600.
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

/// Target of a connection. `Display` writes the syntax of the configuration.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Endpoint {
    /// Host and port; the side that connects resolves the name.
    Tcp {
        /// Name or address, without brackets.
        host: String,
        /// Never 0.
        port: u16,
    },
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

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Check {
    None,
    /// A connection opens and is not closed immediately.
    Tcp,
    /// The service sends data first: SSH, SMTP, MySQL, ...
    Banner,
    /// The service answers `GET path` with a status from 200 to 399.
    Http {
        path: String,
    },
    /// The service answers the null procedure of NFS (RFC 7530 section 16.1, RFC 1813 section 3.3.0).
    NfsNull,
}

impl Check {
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

impl Values {
    /// Names for commands of the tunnel. A forward `nfs` has its address or path as `nfs`, and for an address also
    /// `nfs.host` and `nfs.port`. The mount point is `mount-point`.
    #[must_use]
    pub fn names(forwards: &[Forward], mount: MountPoint<'_>) -> Vec<String> {
        let listens = forwards.iter().filter(|forward| !matches!(forward.way, Way::Remote { .. }));
        let listens = listens.map(|forward| (forward.name.as_ref(), forward.way.listen().clone()));
        Self::new(listens, mount).0.into_keys().collect()
    }

    /// Values of the names, from the place where each forward listens.
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

    /// Environment variables with the values: `TUNNEL_NFS`, `TUNNEL_NFS_PORT`, `TUNNEL_MOUNT_POINT`.
    pub fn variables(&self) -> impl Iterator<Item = (String, &str)> {
        let capital = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_uppercase() } else { '_' };
        self.0.iter().map(move |(name, value)| {
            (format!("TUNNEL_{}", name.chars().map(capital).collect::<String>()), value.as_str())
        })
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MountPoint<'a> {
    None,
    At(&'a std::path::Path),
}

pub const MOUNT_POINT: &str = "mount-point";

/// True for a valid name of a tunnel. The name is used in file names.
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
