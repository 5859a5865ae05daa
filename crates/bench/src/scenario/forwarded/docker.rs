//! Docker: finds a running engine, makes an image of this program with its shared libraries, and runs it as the backend
//! in a container. No registry is used.

use std::ffi::OsString;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddrV4};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::ifaddrs::getifaddrs;
use nix::sys::signal::Signal;

use super::network::tcp;
use crate::address::Address;
use crate::agent::Agent;
use crate::context::Context;
use crate::error::{Error, ErrorContext};
use crate::load::Order;
use crate::process::{self, Ending, Launch, Process};
use crate::target::backend::HttpBackend;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Engine {
    docker: PathBuf,
    pub version: String,
}

/// A container with a backend. Dropping it removes container and image.
#[derive(Debug)]
pub struct Container {
    /// Connection to the backend through Docker's client process.
    _agent: Agent,
    /// Process id of the backend on the host.
    pub pid: i32,
    /// Address for clients on the host.
    pub address: Address,
    /// Process id of the userland proxy; `None` if this path or the engine uses none.
    pub proxy: Option<i32>,
    pub command: String,
    _waste: DockerLeftover,
}

/// Path from the host into a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// A socket in a directory that host and container share.
    Socket,
    /// A port of the host's loopback interface: the container has no network of its own.
    HostNetwork,
    /// A port of the bridge's address, forwarded by the kernel.
    Translated,
    /// A port of the host's loopback interface, served by the userland proxy.
    Userland,
}

#[derive(Debug)]
struct DockerLeftover {
    docker: PathBuf,
    name: String,
}

impl Engine {
    /// Finds the engine of Docker's client; the error says why there is none.
    pub fn find() -> Result<Self, Error> {
        let docker = process::find("docker", "docker.io")?;
        let version = output(&docker, &["version", "--format", "{{.Server.Version}}"])?;
        Ok(Engine { docker, version: format!("Docker {version}") })
    }

    /// Starts a backend in a container. Containers of all paths but the host's network are alike: both ports published.
    pub fn start(&self, context: &Context, body: usize, reach: Reach) -> Result<Container, Error> {
        self.remove_leftovers();
        let name = format!(
            "penstock-bench-{}-{}",
            std::process::id(),
            context.path("c").file_name().and_then(|name| name.to_str()).unwrap_or("c")
        );
        let waste = DockerLeftover { docker: self.docker.clone(), name: name.clone() };
        self.import(context, &name)?;
        let shared = context.path("shared");
        fs::create_dir(&shared).doing(format!("create {}", shared.display()))?;
        let local = free(context, Ipv4Addr::LOCALHOST)?;
        let any = SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, PORT);
        let socket = Address::Unix(shared.join("s"));
        let (network, listen, address) = match reach {
            Reach::HostNetwork => (vec!["--network=host".to_owned()], local, tcp(local)),
            Reach::Socket | Reach::Translated | Reach::Userland => {
                let published = free(context, self.gateway()?)?;
                let network = [local, published].map(|port| format!("--publish={port}:{PORT}"));
                let address = match reach {
                    Reach::Socket => socket,
                    Reach::Translated => tcp(published),
                    Reach::HostNetwork | Reach::Userland => tcp(local),
                };
                (network.to_vec(), any, address)
            }
        };
        let mut arguments = vec![
            OsString::from("run"),
            "--rm".into(),
            "--interactive".into(),
            format!("--name={name}").into(),
            format!("--label={}", label()).into(),
        ];
        arguments.extend(network.into_iter().map(OsString::from));
        arguments.extend([
            cores(&context.cores.target).into(),
            format!("--volume={}:{SHARED}", shared.display()).into(),
            name.clone().into(),
            PROGRAM.into(),
            "bench-load".into(),
        ]);
        let words: Vec<_> = arguments.iter().map(|word| word.to_string_lossy().into_owned()).collect();
        let command = format!("docker {}\n", words.join(" "));
        let launch = Launch::new("docker", &self.docker, &[]).args(arguments);
        let listen = vec![tcp(listen), Address::Unix(Path::new(SHARED).join("s"))];
        let (agent, _) = Agent::serve_as(context, &launch, Order::HttpBackend(HttpBackend { listen, body }))?;
        let pid = output(&self.docker, &["inspect", "--format", "{{.State.Pid}}", &name])?;
        let pid = pid.parse().map_err(|_| failed("docker inspect", &pid))?;
        Ok(Container {
            _agent: agent,
            pid,
            address,
            proxy: userland(local).filter(|_| reach == Reach::Userland),
            command,
            _waste: waste,
        })
    }

    /// Makes the image: a root directory with only the program and its libraries.
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

    /// Removes containers and images of killed runs, which could not remove them.
    fn remove_leftovers(&self) {
        let filter = format!("label={}", label());
        let (containers, images) = (["ps", "--all", "{{.Names}}"], ["images", "--all", "{{.Repository}}"]);
        for ([list, all, format], remove) in [(containers, "rm"), (images, "rmi")] {
            // A later command reports an engine that does not answer.
            let names = output(&self.docker, &[list, all, "--filter", &filter, "--format", format]);
            for name in names.unwrap_or_default().lines().filter(|name| is_orphan(name)) {
                let _ = quiet(&self.docker, &[remove, "--force", name]).status();
            }
        }
    }

    /// Returns the host's address on the default bridge; ports published there are unreachable from other machines.
    /// Every engine reports the interface, but not every one the address.
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

impl Drop for DockerLeftover {
    fn drop(&mut self) {
        // Errors are ignored: the container or image may already be removed.
        for arguments in [["rm", "--force", &self.name], ["rmi", "--force", &self.name]] {
            let _ = quiet(&self.docker, &arguments).status();
        }
    }
}

/// Label of containers and images of this machine's runs. It names the PID namespace, because process ids are unique
/// only within one, and an engine may have clients in several.
fn label() -> String {
    let namespace = fs::read_link("/proc/self/ns/pid").unwrap_or_default();
    format!("penstock-bench={}", namespace.display())
}

/// Checks that the run that named this container has ended.
fn is_orphan(name: &str) -> bool {
    let process =
        name.strip_prefix("penstock-bench-").and_then(|rest| rest.split('-').next()?.parse::<u32>().ok());
    process.is_some_and(|process| !Path::new("/proc").join(process.to_string()).exists())
}

/// Lists the shared libraries of a program with ldd(1); empty if it is static.
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

/// Finds the process that Docker started for a published port.
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

/// Finds a free port of this address; the engine binds it shortly after.
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

/// Returns the output of a short command. A time limit prevents an unresponsive engine from blocking the run.
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
    // A separate process group: a second Ctrl-C must not end the cleanup.
    command.args(arguments).process_group(0);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

fn failed(what: &str, text: &str) -> Error {
    Error::Load { what: what.to_owned(), text: text.lines().last().unwrap_or_default().to_owned() }
}

/// Port of the backend in its container.
const PORT: u16 = 8000;
const PROGRAM: &str = "/penstock";
/// Path of the shared directory in the container.
const SHARED: &str = "/shared";
const LIMIT: Duration = Duration::from_secs(120);
const SHORT_LIMIT: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_killed_runs_left_is_removed_and_nothing_else() {
        let directory = tempfile::tempdir().unwrap();
        let (docker, log) = (directory.path().join("docker"), directory.path().join("log"));
        // Greater than the largest process id (PID_MAX_LIMIT).
        let (dead, own) =
            ("penstock-bench-9999999-7-c", format!("penstock-bench-{}-0-c", std::process::id()));
        let script = format!(
            "#!/bin/sh\necho \"$@\" >> {}\ncase $1 in ps|images) printf '%s\\n' {dead} {own} other;; esac\n",
            log.display()
        );
        // By another process: until its exec, one that another test starts holds what this one had open for writing, and
        // the kernel starts no program that is held so.
        let mut shell = Command::new("sh");
        shell.args(["-c", "printf %s \"$1\" >\"$0\" && chmod 755 \"$0\""]).arg(&docker).arg(script);
        assert!(shell.status().unwrap().success());
        Engine { docker, version: String::new() }.remove_leftovers();
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
