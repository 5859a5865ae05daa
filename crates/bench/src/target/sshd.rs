//! An OpenSSH server for the run: new keys, one loopback address, independent of the system's configuration.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::address::Address;
use crate::context::Context;
use crate::error::{Error, ErrorContext};
use crate::process::{self, Launch, Process};

/// A running server. Dropping it ends the server and its sessions.
#[derive(Debug)]
pub struct Sshd {
    /// The server process, root of the tree of its sessions.
    pub process: Process,
    pub address: SocketAddr,
    /// Private key that the server accepts for logins.
    pub client_key: PathBuf,
    /// Public host key of the server.
    pub host_key: PathBuf,
    /// A `known_hosts` file with the server's key.
    pub known_hosts: PathBuf,
    /// Configuration file as written.
    pub configuration: String,
}

#[derive(Clone, Debug)]
pub struct Programs {
    sshd: PathBuf,
    keygen: PathBuf,
}

impl Programs {
    /// Finds the programs of OpenSSH.
    ///
    /// # Errors
    /// A program is not installed.
    pub fn find() -> Result<Self, Error> {
        Ok(Programs {
            sshd: process::find("sshd", "openssh-server")?,
            keygen: process::find("ssh-keygen", "openssh-client")?,
        })
    }

    /// Returns the ciphers of this machine's server without configuration, in its order.
    ///
    /// # Errors
    /// The server program failed.
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

    /// Starts a server that accepts `ciphers`, on the load's cores.
    ///
    /// # Errors
    /// The server did not start.
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
        // -D: stay in the foreground. -e: write the log to standard error, which goes into our log file.
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

/// Makes the empty directory that sshd needs as root; on Debian a service manager usually makes it.
fn make_privilege_directory() -> Result<(), Error> {
    let directory = Path::new("/run/sshd");
    if nix::unistd::geteuid().is_root() && !directory.exists() {
        let made = fs::DirBuilder::new().mode(0o755).recursive(true).create(directory);
        made.doing("create /run/sshd")?;
    }
    Ok(())
}
