//! Selection of the SSH engine: our own client, or the user's ssh.

use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use clap::{Args, ValueEnum};
use fleet::run::Host;
use fleet::run::engine::Engine;
use fleet::run::native::{LogIns, Native};
use fleet::run::openssh::{Kind, OpenSsh};
use fleet::run::terminal::Terminal;
use hosts::fleet::ending::{Failure as Unreached, Phase, Reason};
use hosts::ssh::config::Asked;
use ssh::identity::{Identities, Places, Store};
use ssh::keys::UserPrompt;
use ssh::{AgentLimits, Client, ConfigFiles, HostVerifier, Keys, Proxy, SshConfig, Target};

use crate::cmd::known_hosts;
use crate::cmd::ssh::refuse;
use crate::output::{Failure, plain};

/// SSH engines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum EngineName {
    /// Our own client
    Native,
    /// The ssh of this machine, a process per host: obeys the identities of penstock host once one is enrolled, else its known_hosts, always with StrictHostKeyChecking yes
    Openssh,
}

/// Options for the connection to hosts.
#[derive(Debug, Clone, Args)]
#[group(skip)]
pub(crate) struct Arguments {
    /// Log in as this user
    #[arg(long, short = 'l', value_name = "USER", help_heading = "SSH")]
    pub user: Option<String>,
    /// Read this file instead of ~/.ssh/config
    #[arg(long, short = 'F', value_name = "FILE", help_heading = "SSH")]
    pub ssh_config: Option<PathBuf>,
    /// SSH engine [default: native]
    #[arg(long, value_enum, help_heading = "SSH")]
    pub engine: Option<EngineName>,
    /// With --engine openssh: this program instead of ssh; it gets HOST COMMAND, as in -S /bin/echo, and -F FILE and -l USER
    /// before them if they are given here
    #[arg(long, short = 'S', value_name = "PROGRAM", help_heading = "SSH")]
    pub ssh: Option<PathBuf>,
}

/// An engine, its hosts, and the identities that connections may update.
pub(crate) struct Ready {
    pub engine: Engine,
    pub hosts: Vec<Host>,
    pub identities: Option<Arc<Identities>>,
    /// The keys of our log-ins; `None` if another program logs in.
    pub log_ins: Option<Arc<LogIns>>,
}

impl Arguments {
    /// Reads the configuration of all hosts and makes the engine.
    pub(crate) fn ready(
        &self,
        names: &[String],
        connect_timeout: Duration,
        terminal: &Arc<Terminal>,
    ) -> Result<Ready, Failure> {
        let given = self.check_file(names)?;
        match self.engine() {
            EngineName::Native => self.native(given, names, connect_timeout, terminal),
            EngineName::Openssh => self.openssh(names, connect_timeout),
        }
    }

    /// Reports an unusable `-F` file once as wrong usage, not once per host. Returns the configuration that our own
    /// client read, because a pipe can be read only once.
    fn check_file(&self, names: &[String]) -> Result<Option<SshConfig>, Failure> {
        let Some(file) = self.ssh_config.as_ref().filter(|file| file.as_os_str() != "none") else {
            return Ok(None);
        };
        // Only the user's program knows how it uses the file.
        if self.ssh.is_some() {
            return Ok(None);
        }
        if self.engine() == EngineName::Openssh {
            // Do not parse the file: ssh may know keywords that we do not.
            let flags = nix::libc::O_NONBLOCK;
            return match std::fs::File::options().read(true).custom_flags(flags).open(file) {
                Ok(_) => Ok(None),
                Err(error) => Err(Failure::usage(format!("{}: {error}", plain(&file.display().to_string())))),
            };
        }
        let config = SshConfig::read(&ConfigFiles::Only(file.clone())).map_err(Failure::usage)?;
        match names.first().and_then(|name| Asked::parse(name)).map(|asked| config.resolve(&asked)) {
            Some(Err(faults)) => Err(refuse(&faults)),
            _ => Ok(Some(config)),
        }
    }

    /// Returns the engine: a program given with `-S` always runs as a process per host.
    pub(crate) fn engine(&self) -> EngineName {
        if self.ssh.is_some() { EngineName::Openssh } else { self.engine.unwrap_or(EngineName::Native) }
    }

    fn native(
        &self,
        given: Option<SshConfig>,
        names: &[String],
        connect_timeout: Duration,
        terminal: &Arc<Terminal>,
    ) -> Result<Ready, Failure> {
        let files = match &self.ssh_config {
            Some(file) if file.as_os_str() == "none" => ConfigFiles::None,
            Some(file) => ConfigFiles::Only(file.clone()),
            None => ConfigFiles::Usual,
        };
        let config = match given {
            Some(config) => config,
            None => SshConfig::read(&files).map_err(Failure::usage)?,
        };
        let identities = Places::of_user().and_then(|places| Identities::load(Store::new(places)));
        let identities =
            Arc::new(identities.map_err(|error| Failure::usage(known_hosts::whole(error)))?.in_run());
        let host = |name: &String| {
            let target = self.target(&config, name);
            let target = target.and_then(|target| target.hinted(&config, identities.index()));
            Host { name: name.clone(), target: target.map(|target| limited(target, connect_timeout)) }
        };
        let hosts = side_by_side(names, host);
        let person = terminal.person(Arc::new(UserPrompt::from_environment()));
        let keys = Keys::asking(person, AgentLimits::default());
        let client = Client::new(Arc::clone(&identities) as Arc<dyn HostVerifier>, Arc::new(keys));
        let native = Native::new(client, Arc::clone(&identities));
        let log_ins = Some(native.log_ins());
        Ok(Ready { engine: Engine::Native(native), hosts, identities: Some(identities), log_ins })
    }

    fn target(&self, config: &SshConfig, name: &str) -> Result<Target, Unreached> {
        let Some(mut asked) = Asked::parse(name) else {
            return Err(unreached(format!(
                "{name:?} is not a host: host, user@host or ssh://user@host:port"
            )));
        };
        asked.user = asked.user.or_else(|| self.user.clone());
        Ok(Target::from_config(config, &asked)?.target)
    }

    fn openssh(&self, names: &[String], connect_timeout: Duration) -> Result<Ready, Failure> {
        let mut arguments = Vec::new();
        if let Some(file) = &self.ssh_config {
            arguments.extend(["-F".to_owned(), file.display().to_string()]);
        }
        if let Some(user) = &self.user {
            arguments.extend(["-l".to_owned(), user.clone()]);
        }
        let (program, kind) = match &self.ssh {
            Some(program) => (program.clone(), Kind::Substitute),
            None => {
                let seconds = connect_timeout.as_secs().max(1);
                arguments.extend(["-o".to_owned(), format!("ConnectTimeout={seconds}")]);
                let known = known_hosts::options()?;
                arguments.extend(known.into_iter().flat_map(|option| ["-o".to_owned(), option]));
                (PathBuf::from("ssh"), Kind::Ssh)
            }
        };
        let engine = Engine::OpenSsh(OpenSsh { program, arguments, kind, login: String::new() });
        Ok(Ready { engine, hosts: by_name(names), identities: None, log_ins: None })
    }

    pub(crate) fn descriptors(&self) -> usize {
        descriptors(self.engine())
    }
}

/// Calls `of` for each name in parallel, because commands of `Match exec` may be slow. Keeps the order of names.
fn side_by_side<T: Send>(names: &[String], of: impl Fn(&String) -> T + Sync) -> Vec<T> {
    let next = AtomicUsize::new(0);
    let work = || {
        let mut done = Vec::new();
        loop {
            let at = next.fetch_add(1, Relaxed);
            let Some(name) = names.get(at) else { return done };
            done.push((at, of(name)));
        }
    };
    let mut all = std::thread::scope(|scope| {
        // If no thread can be started, the current one does all work.
        let helpers = (1..RESOLVED_AT_ONCE.min(names.len()))
            .map_while(|_| std::thread::Builder::new().spawn_scoped(scope, work).ok());
        let helpers: Vec<_> = helpers.collect();
        let mut all = work();
        for helper in helpers {
            all.extend(helper.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        }
        all
    });
    all.sort_unstable_by_key(|(at, _)| *at);
    all.into_iter().map(|(_, one)| one).collect()
}

/// Largest number of hosts resolved in parallel, each of which may start a process.
const RESOLVED_AT_ONCE: usize = 16;

/// Sets the time limit of each step on the host and on its jump hosts.
fn limited(mut target: Target, connect_timeout: Duration) -> Target {
    target.connect_timeout = connect_timeout;
    if let Proxy::Jump(hops) = &mut target.proxy {
        hops.iter_mut().for_each(|hop| hop.connect_timeout = connect_timeout);
    }
    target
}

/// Descriptors per session of an engine.
pub(crate) fn descriptors(engine: EngineName) -> usize {
    match engine {
        EngineName::Native => 1,
        // Three pipes and the log; during the start, both ends of the pipes.
        EngineName::Openssh => 8,
    }
}

/// Makes hosts without an address, for a program that resolves them itself.
pub(crate) fn by_name(names: &[String]) -> Vec<Host> {
    let host = |name: &String| Host { name: name.clone(), target: Err(unreached(String::new())) };
    names.iter().map(host).collect()
}

fn unreached(detail: String) -> Unreached {
    Unreached::not_started(Phase::Queued, Reason::BadConfiguration, detail)
}
