//! Starts Pen, and Penstock under the name `pen`, with the same arguments; clients and backends for both.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use socket2::{Domain, Socket, Type};
use tempfile::TempDir;
use testing::client::{Stream, request};
use testing::peers::Process;
use testing::server::{binary, clear_environment, run_to_end};
use testing::tools::program;
use testing::{Client, Scripted, eventually, port, secs};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Which {
    Pen,
    Penstock,
}

impl Which {
    pub(crate) const BOTH: [Self; 2] = [Self::Pen, Self::Penstock];
}

/// One of the two, running.
pub(crate) struct Door {
    /// Where it listens: `127.0.0.1:PORT`, or the path of a socket.
    pub(crate) address: String,
    pub(crate) process: Process,
    pub(crate) dir: TempDir,
}

/// The command, and where it listens. In `line` stands `@` for that address, `@DIR` for a directory, `~` for a blank in a
/// word.
fn command(which: Which, line: &str) -> (Command, String, TempDir) {
    let dir = tempfile::Builder::new().prefix("pen").tempdir().unwrap();
    let path = dir.path().to_str().unwrap();
    let address = match line.contains("@DIR/front.sock") {
        true => format!("{path}/front.sock"),
        false => format!("127.0.0.1:{}", port::free()),
    };
    let program: PathBuf = match which {
        Which::Pen => program("pen"),
        Which::Penstock => {
            let link = dir.path().join("pen");
            symlink(binary(), &link).unwrap();
            link
        }
    };
    let mut command = Command::new(program);
    for word in line.split_whitespace() {
        let word = if word == "@" { address.clone() } else { word.replace("@DIR", path).replace('~', " ") };
        command.arg(word);
    }
    clear_environment(&mut command);
    // Pen has one process with one turn; here each worker has its own.
    command.env("PENSTOCK_PROCESS_WORKERS", "1");
    (command, address, dir)
}

impl Door {
    /// Starts one of the two in the foreground, and waits until it listens. No connection is made for that: it would count.
    #[track_caller]
    pub(crate) fn open(which: Which, line: &str) -> Self {
        let (mut command, address, dir) = command(which, &format!("-f {line}"));
        let process = Process::start(&mut command);
        let what = format!("{which:?} listens at {address}");
        eventually(&what, secs(10), || {
            match which {
                Which::Pen => listens(&address),
                Which::Penstock => process.stderr.count(" ready") > 0,
            }
            .then_some(())
        });
        Self { address, process, dir }
    }

    /// Runs one of the two to its end, where it does not start.
    pub(crate) fn fails(which: Which, line: &str) -> Output {
        let (mut command, _, _dir) = command(which, &format!("-f {line}"));
        run_to_end(command.stdin(Stdio::null()), secs(20))
    }

    /// The body of an answer to GET, or what there was instead.
    pub(crate) fn ask(&self) -> String {
        answer(Client::try_connect(&self.address))
    }

    pub(crate) fn asks(&self, count: usize) -> Vec<String> {
        (0..count).map(|_| self.ask()).collect()
    }

    /// The same from an address of 127.0.0.0/16.
    pub(crate) fn ask_from(&self, client: u16) -> String {
        answer(connect_from(client, &self.address))
    }

    /// Opens a connection, and waits for the name of its server. `None` if the connection is closed, or nothing comes.
    pub(crate) fn hold(&self, limit: Duration) -> Option<(Client, String)> {
        held(Client::try_connect(&self.address), limit)
    }

    /// The same from an address of 127.0.0.0/16.
    pub(crate) fn hold_from(&self, client: u16, limit: Duration) -> Option<(Client, String)> {
        held(connect_from(client, &self.address), limit)
    }
}

fn held(client: std::io::Result<Client>, limit: Duration) -> Option<(Client, String)> {
    let mut client = client.ok()?;
    let name = greeting(&mut client, limit)?;
    Some((client, name))
}

/// The line with which a server greets.
pub(crate) fn greeting(client: &mut Client, limit: Duration) -> Option<String> {
    let line = client.take_until(b"\n", std::time::Instant::now() + limit).ok()?;
    Some(String::from_utf8(line).unwrap().trim().to_owned())
}

pub(crate) fn answer(client: std::io::Result<Client>) -> String {
    let Ok(mut client) = client else { return "refused".to_owned() };
    if client.try_send(request("GET", "/", &[("Connection", "close")], b"")).is_err() {
        return "closed".to_owned();
    }
    match client.try_response(secs(8)) {
        Ok(response) if response.status == 200 => response.text(),
        Ok(response) => response.status.to_string(),
        Err(why) if why.starts_with("time") => "silence".to_owned(),
        Err(_) => "closed".to_owned(),
    }
}

fn connect_from(client: u16, address: &str) -> std::io::Result<Client> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    let [third, last] = client.to_be_bytes();
    let source = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(127, 0, third, last)), 0);
    socket.bind(&source.into())?;
    socket.connect(&address.parse::<SocketAddr>().unwrap().into())?;
    Ok(Client::over(Stream::Tcp(TcpStream::from(socket))))
}

/// Whether a socket listens there, by the tables of the kernel.
fn listens(address: &str) -> bool {
    if address.starts_with('/') {
        let table = fs::read_to_string("/proc/net/unix").unwrap();
        // The flag of a socket that listens (include/linux/net.h: __SO_ACCEPTCON).
        return table.lines().any(|line| line.ends_with(address) && line.contains(" 00010000 "));
    }
    let port: SocketAddr = address.parse().unwrap();
    let end = format!(":{:04X}", port.port());
    let in_table = |name: &str, state: &str| {
        let table = fs::read_to_string(format!("/proc/net/{name}")).unwrap();
        table.lines().skip(1).any(|line| {
            let fields: Vec<_> = line.split_whitespace().collect();
            fields[1].ends_with(&end) && fields[3] == state
        })
    };
    in_table("tcp", "0A") || in_table("udp", "07")
}

/// A server that greets with its name, and keeps the connection until the client closes it.
pub(crate) fn greeter(name: &'static str) -> Scripted {
    Scripted::start(move |talk| {
        if talk.send(format!("{name}\n")) {
            talk.rest();
        }
    })
}

/// The names in the order in which they first appear, each as its number: servers as seen by somebody who does not know
/// their names.
pub(crate) fn numbered(names: &[String]) -> Vec<usize> {
    let mut known: Vec<&String> = Vec::new();
    let number = |name| {
        known.iter().position(|known| *known == name).unwrap_or_else(|| {
            known.push(name);
            known.len() - 1
        })
    };
    names.iter().map(number).collect()
}

/// Runs the script with both, and compares what it returns.
#[track_caller]
pub(crate) fn same<T: PartialEq + std::fmt::Debug>(script: impl Fn(Which) -> T) -> T {
    let [pen, penstock] = Which::BOTH.map(script);
    assert_eq!(pen, penstock, "left: what Pen's clients see; right: Penstock's");
    penstock
}
