//! Network namespaces that are made for a run, so that the machine's own network is unchanged.
//!
//! A namespace without a name ends with the process that holds it, together with its interfaces and rules. Therefore
//! even a killed run leaves nothing behind.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use nix::sched::{CloneFlags, setns};

use crate::address::Address;
use crate::context::Context;
use crate::error::{Error, ErrorContext};
use crate::process::{self, Ending, Launch, Process};

/// A network namespace and the process that holds it.
#[derive(Debug)]
pub struct Namespace {
    holder: Process,
    enter: PathBuf,
    nsenter: PathBuf,
}

/// Programs that create and connect namespaces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tools {
    pub ip: PathBuf,
    unshare: PathBuf,
    nsenter: PathBuf,
}

impl Tools {
    pub fn find() -> Result<Self, Error> {
        Ok(Tools {
            ip: process::find("ip", "iproute2")?,
            unshare: process::find("unshare", "util-linux")?,
            nsenter: process::find("nsenter", "util-linux")?,
        })
    }
}

impl Namespace {
    /// Makes a namespace with only a loopback interface, which is down.
    pub fn create(context: &Context, tools: &Tools, name: &str) -> Result<Self, Error> {
        let launch = Launch::new(name, &tools.unshare, &[]).args(["--net", "--", "sleep", "infinity"]);
        let mut holder = Process::start(context, &launch)?;
        let enter = PathBuf::from(format!("/proc/{}/ns/net", holder.pid()));
        let own =
            fs::read_link("/proc/self/ns/net").doing("look at the network namespace of this process")?;
        let start = Instant::now();
        // Wait until unshare(1) has left the namespace of this process.
        while fs::read_link(&enter).is_ok_and(|link| link == own) {
            context.check()?;
            if start.elapsed() > LIMIT {
                let (seconds, log) = (LIMIT.as_secs(), holder.last_words());
                return Err(Error::NotReady { what: name.to_owned(), seconds, log });
            }
            thread::sleep(POLL);
        }
        holder.check()?;
        Ok(Namespace { holder, enter, nsenter: tools.nsenter.clone() })
    }

    /// Process id of the holder, as which `ip link ... netns` knows the namespace.
    pub fn pid(&self) -> i32 {
        self.holder.pid()
    }

    /// File of the namespace.
    pub fn path(&self) -> &Path {
        &self.enter
    }

    /// Wraps a command to run in this namespace. nsenter(1) keeps the process id that the command would have outside.
    pub fn launch(&self, launch: Launch) -> Launch {
        let inside = Launch::new(launch.name, &self.nsenter, &launch.cores)
            .arg(format!("--net={}", self.enter.display()))
            .arg("--")
            .arg(launch.program)
            .args(launch.arguments);
        Launch { environment: launch.environment, directory: launch.directory, ..inside }
    }

    /// Waits until `process` accepts connections at `address` in this namespace.
    pub fn wait_listening(
        &self,
        context: &Context,
        process: &mut Process,
        address: &Address,
    ) -> Result<(), Error> {
        let start = Instant::now();
        while self.connect(address).is_err() {
            context.check()?;
            process.check()?;
            if start.elapsed() > LIMIT {
                let (what, seconds, log) = (process.name().to_owned(), LIMIT.as_secs(), process.last_words());
                return Err(Error::NotReady { what, seconds, log });
            }
            thread::sleep(POLL);
        }
        Ok(())
    }

    /// Connects on a separate thread, because setns(2) moves its calling thread into the namespace.
    pub fn connect(&self, address: &Address) -> io::Result<()> {
        let connect = || {
            setns(File::open(&self.enter)?, CloneFlags::CLONE_NEWNET)?;
            address.connect().map(drop)
        };
        thread::scope(|scope| scope.spawn(connect).join())
            .unwrap_or_else(|_| Err(io::Error::other("connecting panicked")))
    }

    /// Runs commands of a shell, all of which must succeed.
    pub fn run(&self, context: &Context, name: &str, commands: &str) -> Result<(), Error> {
        let shell = Launch::new(name, "/bin/sh", &[]).arg("-ec").arg(commands);
        let mut process = Process::start(context, &self.launch(shell))?;
        match process.wait(context, LIMIT)? {
            Ending::Well => Ok(()),
            Ending::Badly => Err(Error::Ended { what: name.to_owned(), log: process.last_words() }),
        }
    }
}

/// Returns an error with advice if this process may not make network namespaces.
pub fn permitted() -> Result<(), Error> {
    let status = fs::read_to_string("/proc/self/status").doing("read what this process may do")?;
    if may_make_networks(&status) {
        return Ok(());
    }
    let what = "making network namespaces".to_owned();
    let why =
        "it needs root: run it with sudo, or as `unshare --user --map-root-user penstock bench ...`, which \
               Debian allows every user"
            .to_owned();
    Err(Error::Unsupported { what, why })
}

/// Looks for CAP_NET_ADMIN and CAP_SYS_ADMIN among the effective capabilities (proc_pid_status(5), capabilities(7)).
fn may_make_networks(status: &str) -> bool {
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let set = line.and_then(|text| u64::from_str_radix(text.trim(), 16).ok()).unwrap_or_default();
    let needed = 1 << 12 | 1 << 21;
    set & needed == needed
}

const LIMIT: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(3);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capabilities_decide_whether_networks_can_be_made() {
        assert!(may_make_networks("Name:\tx\nCapEff:\t000001ffffffffff\n"));
        assert!(!may_make_networks("CapEff:\t0000000000000000\n"));
        assert!(!may_make_networks("CapEff:\t0000000000001000\n"));
        assert!(!may_make_networks(""));
    }
}
