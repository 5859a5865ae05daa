//! Docker itself: an engine that runs, an image made of this program and the libraries that it is linked with, and a
//! container in which it is the backend. No registry is asked for anything.

use std::ffi::OsString;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::ifaddrs::getifaddrs;
use nix::sys::signal::Signal;

use crate::address::Address;
use crate::agent::Agent;
use crate::context::Context;
use crate::error::{Doing, Error};
use crate::load::Order;
use crate::process::{self, Ending, Launch, Process};
use crate::target::backend::HttpBackend;

/// An engine that runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Engine {
    docker: PathBuf,
    /// What it says about its version.
    pub version: String,
}

/// A container with a backend; it and its image are removed when this is dropped.
#[derive(Debug)]
pub struct Container {
    /// Speaks with the backend: its process is Docker's client.
    _agent: Agent,
    /// The backend's process, as the host sees it.
    pub pid: i32,
    /// A port of the host's loopback interface: the userland proxy listens there.
    pub local: SocketAddrV4,
    /// A port of the bridge's address: the kernel forwards it.
    pub published: SocketAddrV4,
    /// A socket in a directory that host and container share.
    pub socket: Address,
    /// The userland proxy of `local`; none if the engine does without.
    pub proxy: Option<i32>,
    /// The command that started it.
    pub command: String,
    _waste: Waste,
}

/// What has to be removed.
#[derive(Debug)]
struct Waste {
    docker: PathBuf,
    name: String,
}

impl Engine {
    /// The engine that Docker's client reaches; an error says why there is none.
    pub fn find() -> Result<Self, Error> {
        let docker = process::find("docker", "docker.io")?;
        let version = output(&docker, &["version", "--format", "{{.Server.Version}}"])?;
        Ok(Engine { docker, version: format!("Docker {version}") })
    }

    /// Starts a backend in a container.
    pub fn start(&self, context: &Context, body: usize) -> Result<Container, Error> {
        self.sweep();
        let name = format!(
            "penstock-bench-{}-{}",
            std::process::id(),
            context.path("c").file_name().and_then(|name| name.to_str()).unwrap_or("c")
        );
        let waste = Waste { docker: self.docker.clone(), name: name.clone() };
        self.import(context, &name)?;
        let gateway = self.gateway()?;
        let shared = context.path("shared");
        fs::create_dir(&shared).doing(format!("create {}", shared.display()))?;
        let (local, published) = (free(context, Ipv4Addr::LOCALHOST)?, free(context, gateway)?);
        let arguments = [
            OsString::from("run"),
            "--rm".into(),
            "--interactive".into(),
            format!("--name={name}").into(),
            format!("--label={}", label()).into(),
            format!("--publish={local}:{PORT}").into(),
            format!("--publish={published}:{PORT}").into(),
            cores(&context.cores.target).into(),
            format!("--volume={}:{SHARED}", shared.display()).into(),
            name.clone().into(),
            PROGRAM.into(),
            "bench-load".into(),
        ];
        let words: Vec<_> = arguments.iter().map(|word| word.to_string_lossy().into_owned()).collect();
        let command = format!("docker {}\n", words.join(" "));
        let launch = Launch::new("docker", &self.docker, &[]).args(arguments);
        let any = SocketAddr::from((Ipv4Addr::UNSPECIFIED, PORT));
        let listen = vec![Address::Tcp(any), Address::Unix(Path::new(SHARED).join("s"))];
        let (agent, _) = Agent::serve_as(context, &launch, Order::HttpBackend(HttpBackend { listen, body }))?;
        let pid = output(&self.docker, &["inspect", "--format", "{{.State.Pid}}", &name])?;
        let pid = pid.parse().map_err(|_| failed("docker inspect", &pid))?;
        Ok(Container {
            _agent: agent,
            pid,
            local,
            published,
            socket: Address::Unix(shared.join("s")),
            proxy: userland(local),
            command,
            _waste: waste,
        })
    }

    /// Makes the image: a root directory with the program and nothing that it does not need.
    fn import(&self, context: &Context, name: &str) -> Result<(), Error> {
        let root = context.path("root");
        let mut files = vec![(context.program.clone(), PathBuf::from(PROGRAM))];
        files.extend(libraries(&context.program)?.into_iter().map(|path| (path.clone(), path)));
        for (from, to) in files {
            let to = root.join(to.strip_prefix("/").unwrap_or(&to));
            let parent = to.parent().unwrap_or(&root);
            let copied = fs::create_dir_all(parent).and_then(|()| fs::copy(&from, &to));
            copied.doing(format!("copy {} to {}", from.display(), to.display()))?;
        }
        let archive = context.path("root.tar");
        let tar = Launch::new("tar", process::find("tar", "tar")?, &[]);
        run(context, tar.arg("-C").arg(&root).arg("-cf").arg(&archive).arg("."))?;
        let import = Launch::new("docker import", &self.docker, &[]);
        let change = format!("--change=LABEL {}", label());
        run(context, import.arg("import").arg(change).arg(&archive).arg(name))?;
        let removed = fs::remove_file(&archive).and_then(|()| fs::remove_dir_all(&root));
        removed.doing("remove the files of the image")
    }

    /// Removes what runs left that were killed: they could not do it themselves.
    fn sweep(&self) {
        let filter = format!("label={}", label());
        let (containers, images) = (["ps", "--all", "{{.Names}}"], ["images", "--all", "{{.Repository}}"]);
        for ([list, all, format], remove) in [(containers, "rm"), (images, "rmi")] {
            // An engine that does not answer is found out about when something is started.
            let names = output(&self.docker, &[list, all, "--filter", &filter, "--format", format]);
            for name in names.unwrap_or_default().lines().filter(|name| is_orphan(name)) {
                let _ = quiet(&self.docker, &[remove, "--force", name]).status();
            }
        }
    }

    /// The host's address on the default bridge: ports published there cannot be reached from elsewhere. Not every
    /// engine tells the address, but all tell the interface.
    fn gateway(&self) -> Result<Ipv4Addr, Error> {
        let format = "{{index .Options \"com.docker.network.bridge.name\"}}";
        let bridge = output(&self.docker, &["network", "inspect", "--format", format, "bridge"])?;
        let interfaces = getifaddrs().doing("list network interfaces")?;
        let mut addresses = interfaces
            .filter(|interface| interface.interface_name == bridge)
            .filter_map(|interface| Some(interface.address?.as_sockaddr_in()?.ip()));
        let why = format!("the interface {bridge:?} has no IPv4 address on this machine");
        addresses.next().ok_or_else(|| failed("finding Docker's bridge", &why))
    }
}

impl Drop for Waste {
    fn drop(&mut self) {
        // Whatever is not there any more need not be removed, and nobody is left who could be told.
        for arguments in [["rm", "--force", &self.name], ["rmi", "--force", &self.name]] {
            let _ = quiet(&self.docker, &arguments).status();
        }
    }
}

/// What marks containers and images of this machine's runs. Process ids mean something within a PID namespace only, and
/// an engine may have clients in several.
fn label() -> String {
    let namespace = fs::read_link("/proc/self/ns/pid").unwrap_or_default();
    format!("penstock-bench={}", namespace.display())
}

/// Whether the run that gave a container this name is gone.
fn is_orphan(name: &str) -> bool {
    let process =
        name.strip_prefix("penstock-bench-").and_then(|rest| rest.split('-').next()?.parse::<u32>().ok());
    process.is_some_and(|process| !Path::new("/proc").join(process.to_string()).exists())
}

/// The libraries that a program is linked with, by ldd(1); none if it is static.
fn libraries(program: &Path) -> Result<Vec<PathBuf>, Error> {
    let ldd = process::find("ldd", "libc-bin")?;
    let text = Command::new(ldd).arg(program).stdin(Stdio::null()).stderr(Stdio::null()).output();
    let text = text.doing("run ldd")?;
    Ok(parse_libraries(&String::from_utf8_lossy(&text.stdout)))
}

fn parse_libraries(text: &str) -> Vec<PathBuf> {
    let paths = text.lines().filter_map(|line| line.split_whitespace().find(|word| word.starts_with('/')));
    paths.map(PathBuf::from).collect()
}

fn cores(cores: &[usize]) -> String {
    let list: Vec<_> = cores.iter().map(usize::to_string).collect();
    if list.is_empty() { "--cpuset-cpus=".to_owned() } else { format!("--cpuset-cpus={}", list.join(",")) }
}

/// The process that Docker started for a published port.
fn userland(listen: SocketAddrV4) -> Option<i32> {
    let entries = fs::read_dir("/proc").ok()?.flatten();
    let mut numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    numbers.find(|pid| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let words: Vec<_> = line.split(|byte| *byte == 0).map(String::from_utf8_lossy).collect();
        let follows =
            |name: &str, value: &str| words.windows(2).any(|pair| pair[0] == name && pair[1] == value);
        words[0].ends_with("docker-proxy")
            && follows("-host-ip", &listen.ip().to_string())
            && follows("-host-port", &listen.port().to_string())
    })
}

/// A port of this address that is free; the engine takes it a moment later.
fn free(context: &Context, ip: Ipv4Addr) -> Result<SocketAddrV4, Error> {
    match context.free_tcp()? {
        Address::Tcp(address) if address.ip() == IpAddr::V4(Ipv4Addr::LOCALHOST) => {
            Ok(SocketAddrV4::new(ip, address.port()))
        }
        other => Err(failed("finding a free port", &other.to_string())),
    }
}

fn run(context: &Context, launch: Launch) -> Result<(), Error> {
    let name = launch.name.clone();
    let mut process = Process::start(context, &launch)?;
    match process.wait(context, LIMIT)? {
        Ending::Well => Ok(()),
        Ending::Badly => Err(failed(&name, &process.last_words())),
    }
}

/// What a short command says. One that takes too long is ended: an engine that hangs must not hang a run.
fn output(docker: &Path, arguments: &[&str]) -> Result<String, Error> {
    let what = format!("docker {}", arguments.join(" "));
    let doing = format!("run {what}");
    let mut child = quiet(docker, arguments)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .doing(doing.clone())?;
    let process = sys::process::Process::of_child(child.id());
    let start = Instant::now();
    while child.try_wait().doing(doing.clone())?.is_none() {
        if start.elapsed() > SHORT_LIMIT {
            process.signal(Signal::SIGKILL);
            let _ = child.wait();
            return Err(failed(&what, "it did not answer"));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let output = child.wait_with_output().doing(doing)?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    if output.status.success() { Ok(text(&output.stdout)) } else { Err(failed(&what, &text(&output.stderr))) }
}

fn quiet(docker: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(docker);
    // A second Ctrl-C must not end what cleans up after the first.
    command.args(arguments).process_group(0);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

fn failed(what: &str, text: &str) -> Error {
    Error::Load { what: what.to_owned(), text: text.lines().last().unwrap_or_default().to_owned() }
}

/// The backend's port in its container.
const PORT: u16 = 8000;
/// The program in the image.
const PROGRAM: &str = "/penstock";
/// The shared directory in the container.
const SHARED: &str = "/shared";
const LIMIT: Duration = Duration::from_secs(120);
const SHORT_LIMIT: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn what_killed_runs_left_is_removed_and_nothing_else() {
        let directory = tempfile::tempdir().unwrap();
        let (docker, log) = (directory.path().join("docker"), directory.path().join("log"));
        // No process has a number beyond the kernel's largest (PID_MAX_LIMIT).
        let (dead, own) =
            ("penstock-bench-9999999-7-c", format!("penstock-bench-{}-0-c", std::process::id()));
        let script = format!(
            "#!/bin/sh\necho \"$@\" >> {}\ncase $1 in ps|images) printf '%s\\n' {dead} {own} other;; esac\n",
            log.display()
        );
        fs::write(&docker, script).unwrap();
        fs::set_permissions(&docker, fs::Permissions::from_mode(0o755)).unwrap();
        Engine { docker, version: String::new() }.sweep();
        let log = fs::read_to_string(log).unwrap();
        let removed: Vec<_> = log.lines().filter(|line| line.starts_with("rm")).collect();
        assert_eq!(removed, [format!("rm --force {dead}"), format!("rmi --force {dead}")]);
        let asked = format!("ps --all --filter label={} ", label());
        assert!(log.starts_with(&asked), "{log}");
    }

    #[test]
    fn libraries_are_read_from_every_form_of_line() {
        let text = "\tlinux-vdso.so.1 (0x7ffe)\n\tlibm.so.6 => /lib/x86_64-linux-gnu/libm.so.6 (0x7f)\n\
                    \t/lib64/ld-linux-x86-64.so.2 (0x7f)\n";
        let expected = ["/lib/x86_64-linux-gnu/libm.so.6", "/lib64/ld-linux-x86-64.so.2"].map(PathBuf::from);
        assert_eq!(parse_libraries(text), expected);
        assert!(parse_libraries("\tnot a dynamic executable\n").is_empty());
    }
}
