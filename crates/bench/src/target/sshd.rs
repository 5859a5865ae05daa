//! An OpenSSH server of the run's own: fresh keys, one address on the loopback interface, nothing of the system's.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::address::Address;
use crate::context::Context;
use crate::error::{Doing, Error};
use crate::process::{self, Launch, Process};

/// A server that is up. It ends, with its sessions, when it is dropped.
#[derive(Debug)]
pub struct Sshd {
    /// The server: root of the tree of its sessions.
    pub process: Process,
    /// Where it listens.
    pub address: SocketAddr,
    /// The private key that it lets in.
    pub client_key: PathBuf,
    /// The public half of its host key.
    pub host_key: PathBuf,
    /// A `known_hosts` file that knows it.
    pub known_hosts: PathBuf,
    /// Its configuration, as it was written.
    pub configuration: String,
}

/// The programs that are needed.
#[derive(Clone, Debug)]
pub struct Programs {
    sshd: PathBuf,
    keygen: PathBuf,
}

impl Programs {
    /// Finds them.
    ///
    /// # Errors
    /// One is not installed.
    pub fn find() -> Result<Self, Error> {
        Ok(Programs {
            sshd: process::find("sshd", "openssh-server")?,
            keygen: process::find("ssh-keygen", "openssh-client")?,
        })
    }

    /// The ciphers that a server of this machine accepts if nothing is configured, in its order.
    ///
    /// # Errors
    /// It could not be asked.
    pub fn ciphers(&self, context: &Context) -> Result<Vec<String>, Error> {
        let key = self.make_key(context, "question-key")?;
        let configuration = context.write("sshd-question", &format!("HostKey {}\n", key.display()))?;
        make_privilege_directory()?;
        let output = Command::new(&self.sshd).arg("-T").arg("-f").arg(configuration).output();
        let output = output.doing("ask sshd for its ciphers (sshd -T)")?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let ciphers = text.lines().find_map(|line| line.strip_prefix("ciphers "));
        ciphers.map(|line| line.split(',').map(str::to_owned).collect()).ok_or_else(|| Error::Load {
            what: "sshd -T".to_owned(),
            text: String::from_utf8_lossy(&output.stderr).trim().to_owned(),
        })
    }

    /// Starts a server that accepts these ciphers, on the load's cores.
    ///
    /// # Errors
    /// It did not start.
    pub fn start(&self, context: &Context, ciphers: &[String]) -> Result<Sshd, Error> {
        make_privilege_directory()?;
        let Address::Tcp(address) = context.free_tcp()? else {
            return Err(Error::Unsupported { what: "sshd".to_owned(), why: "it listens on TCP".to_owned() });
        };
        let (host, client) = (self.make_key(context, "host-key")?, self.make_key(context, "client-key")?);
        let configuration = format!(
            "ListenAddress {address}\nHostKey {}\nAuthorizedKeysFile {}\nCiphers {}\nPidFile none\n\
             UsePAM no\nStrictModes no\nPermitRootLogin prohibit-password\nPasswordAuthentication no\n\
             MaxStartups 1000\n",
            host.display(),
            public(&client).display(),
            ciphers.join(",")
        );
        let file = context.write("sshd_config", &configuration)?;
        let public_host = public(&host);
        let key = fs::read_to_string(&public_host).doing(format!("read {}", public_host.display()))?;
        let known = format!("[{}]:{} {key}", address.ip(), address.port());
        let known_hosts = context.write("known_hosts", &known)?;
        // -D stays in the foreground, -e writes into the log that we keep.
        let launch = Launch::new("sshd", &self.sshd, &context.cores.load).args(["-D", "-e", "-f"]).arg(file);
        let mut process = Process::start(context, &launch)?;
        process.wait_listening(context, &Address::Tcp(address))?;
        Ok(Sshd { process, address, client_key: client, host_key: public_host, known_hosts, configuration })
    }

    fn make_key(&self, context: &Context, name: &str) -> Result<PathBuf, Error> {
        let path = context.path(name);
        let doing = "make a key with ssh-keygen";
        let status = Command::new(&self.keygen)
            .args(["-q", "-t", "ed25519", "-N", "", "-C", "penstock bench", "-f"])
            .arg(&path)
            .status()
            .doing(doing)?;
        if !status.success() {
            return Err(Error::Load { what: doing.to_owned(), text: status.to_string() });
        }
        Ok(path)
    }
}

fn public(key: &Path) -> PathBuf {
    let mut name = key.as_os_str().to_owned();
    name.push(".pub");
    name.into()
}

/// As root, Debian's sshd wants an empty directory for its unprivileged half, which a service manager makes elsewhere.
fn make_privilege_directory() -> Result<(), Error> {
    let directory = Path::new("/run/sshd");
    if nix::unistd::geteuid().is_root() && !directory.exists() {
        let made = fs::DirBuilder::new().mode(0o755).recursive(true).create(directory);
        made.doing("create /run/sshd")?;
    }
    Ok(())
}
