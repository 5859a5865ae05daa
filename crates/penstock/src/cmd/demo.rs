//! `penstock demo`: the front door with backends, certificates and traffic, in one command.
//! The front door is a child process that runs the very file the demo shows; the table reads its control socket.

use std::env;
use std::fs;
use std::io::{self, IsTerminal};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use tokio::time::{self, Instant};

use crate::demo::backend::{self, Backend, Power};
use crate::demo::server::Server;
use crate::demo::table::Table;
use crate::demo::traffic::Traffic;
use crate::demo::{authority, status};
use crate::directory::Directory;
use crate::output::{Failure, plain, print};
use crate::paste::{program, quote};
use crate::signals::Signals;

/// Try it: four backends, HTTP and HTTPS, a live table; nothing to configure
///
/// Starts two backends on TCP ports and two on Unix sockets, makes a throw-away certificate authority, runs a
/// server in front of them and prints what to try. Everything is on the loopback address and in one temporary
/// directory, which is removed at the end. Ctrl-C ends it.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    /// Port for HTTP on 127.0.0.1; 0 takes a free one
    #[arg(long, value_name = "PORT", default_value_t = 0)]
    http_port: u16,
    /// Port for HTTPS on 127.0.0.1; 0 takes a free one
    #[arg(long, value_name = "PORT", default_value_t = 0)]
    https_port: u16,
    /// Requests a second that the demo makes itself, so that the table moves; 0 makes none
    /// [default: 20 on a terminal, otherwise 0]
    #[arg(long, value_name = "RATE", value_parser = clap::value_parser!(u32).range(0..=10_000))]
    traffic: Option<u32>,
    /// Take one backend after the other down and up again, every 10 seconds
    #[arg(long)]
    kill_one: bool,
    /// End after so many seconds instead of at Ctrl-C
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    seconds: Option<u64>,
}

const EXAMPLES: &str = "\
Examples:
  penstock demo
  penstock demo --kill-one                    watch backends fail and come back, and no request lost
  penstock demo --http-port 8080 --traffic 200
  penstock demo --seconds 30 --traffic 50 | tee demo.log";

/// Runs the demo until Ctrl-C, SIGTERM, or the end of its time.
pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    // From here on Ctrl-C waits for its turn, and no way out leaves anything behind.
    let mut signals = {
        let _context = runtime.enter();
        Signals::install()?
    };
    let directory = Directory::create("demo").map_err(|error| {
        Failure::runtime(format_args!("cannot make a directory in {}: {error}", env::temp_dir().display()))
    })?;
    let stage = Stage::build(arguments, &directory).map_err(Failure::Runtime)?;
    let result =
        print(&stage.introduction()).and_then(|()| runtime.block_on(stage.show(arguments, &mut signals)));
    stage.server.stop();
    let path = directory.path().display().to_string();
    drop(directory);
    result?;
    print(&format!("demo: ended, {path} is removed\n"))
}

/// Everything that runs.
struct Stage {
    backends: Vec<Backend>,
    server: Server,
    files: Files,
    http: SocketAddr,
    https: SocketAddr,
    admin: String,
}

/// The files that people may want to look at.
struct Files {
    configuration: PathBuf,
    authority: PathBuf,
    control: PathBuf,
    access_log: PathBuf,
    log: PathBuf,
}

impl Stage {
    fn build(arguments: &Arguments, directory: &Directory) -> anyhow::Result<Self> {
        let backends = backend::start(directory.path()).context("cannot start the backends")?;
        let certificates = authority::create(directory.path()).context("cannot make certificates")?;
        let files = Files {
            configuration: directory.join("penstock.toml"),
            authority: certificates.authority,
            control: directory.join("control.sock"),
            access_log: directory.join("access.log"),
            log: directory.join("penstock.log"),
        };
        let text = configuration(arguments, &files, &certificates.certificates, &backends)?;
        fs::write(&files.configuration, text)
            .with_context(|| format!("cannot write {}", files.configuration.display()))?;
        let program = env::current_exe().context("cannot find this program")?;
        let server = Server::start(&program, &files.configuration, &files.log)?;
        let http = server.bound.listener("web")?;
        let https = server.bound.listener("secure")?;
        let admin =
            server.bound.admin.clone().context("the front door did not say where its admin listener is")?;
        Ok(Stage { backends, server, files, http, https, admin })
    }

    /// What to try: every line works as it stands.
    fn introduction(&self) -> String {
        let Stage { http, admin, .. } = self;
        let https = self.https.port();
        let program = program();
        let first = &self.backends[0].address;
        let backends: String = self
            .backends
            .iter()
            .map(|backend| format!("    {:<11}  {}\n", backend.name, backend.address))
            .collect();
        let Files { configuration, authority, control, access_log, log } = &self.files;
        let [configuration, authority, control, access_log, log] =
            [configuration, authority, control, access_log, log].map(|path| quote(path));
        format!(
            "\
Penstock demo: HTTP and HTTPS in front of four backends, two on TCP ports and two on Unix sockets.

  HTTP           http://{http}/
  HTTPS          https://localhost:{https}/
  configuration  {configuration}
  server log     {log}
  access log     {access_log}
  backends, by the names that they answer with
{backends}
Try in another terminal:

  # one request over HTTP, one over HTTPS
  curl http://{http}/
  curl --cacert {authority} https://localhost:{https}/

  # all four backends answer
  curl -s 'http://{http}/?[1-40]' | sort | uniq -c
  curl -s --cacert {authority} 'https://localhost:{https}/?[1-40]' | sort | uniq -c

  # what a backend is told about the client; a slow answer
  curl http://{http}/inspect
  curl 'http://{http}/slow?ms=300'

  # what the server is doing; take a backend out of service and back
  {program} ctl --socket {control} status
  {program} ctl --socket {control} drain {POOL} {first}
  {program} ctl --socket {control} ready {POOL} {first}

  # numbers for Prometheus; the file that is running, a good one to start from
  curl -s http://{admin}/metrics
  {program} check {configuration}

Ctrl-C ends the demo and removes its files.

demo: ready
"
        )
    }

    /// Shows the table until somebody or something ends it.
    async fn show(&self, arguments: &Arguments, signals: &mut Signals) -> Result<(), Failure> {
        let screen = Screen::detect();
        let traffic = match arguments.traffic.unwrap_or(screen.default_traffic()) {
            0 => None,
            rate => Some(Traffic::start(self.http, rate)?),
        };
        let names = self.backends.iter().map(|backend| (backend.address.clone(), backend.name)).collect();
        let mut table = Table::new(names);
        let mut looks = status::watch(self.files.control.clone(), screen.interval())?;
        let started = Instant::now();
        let end = arguments.seconds.map(|seconds| started + Duration::from_secs(seconds));
        let mut switches = time::interval_at(started + FIRST_SWITCH, SWITCH_INTERVAL);
        let mut victim = Victim::default();
        loop {
            tokio::select! {
                () = signals.any() => return Ok(()),
                () = until(end) => return Ok(()),
                look = looks.recv() => {
                    let Some(look) = look else { return Err(Failure::runtime("nobody looks at the front door any more")) };
                    let gone = look.status.as_ref().err().filter(|_| !self.server.is_running());
                    if gone.is_some() {
                        let log = last_lines(&self.files.log);
                        return Err(Failure::runtime(format_args!("the front door has ended; its last lines:\n{log}")));
                    }
                    table.update(look, traffic.as_ref().map(Traffic::take));
                    screen.show(&mut table)?;
                }
                _ = switches.tick(), if arguments.kill_one => {
                    let note = victim.next(&self.backends);
                    screen.note(&mut table, format!("demo: after {} s: {note}", started.elapsed().as_secs()))?;
                }
            }
        }
    }
}

/// The configuration that the demo runs, written for people who copy it.
fn configuration(
    arguments: &Arguments,
    files: &Files,
    certificates: &Path,
    backends: &[Backend],
) -> anyhow::Result<String> {
    let Arguments { http_port, https_port, .. } = arguments;
    let backends: Vec<_> = backends
        .iter()
        .map(|backend| format!("    {}, # {}\n", string(&backend.address), backend.name))
        .collect();
    let backends = backends.concat();
    let [access_log, control, certificates] =
        [files.access_log.as_path(), &files.control, certificates].map(path_string);
    let (access_log, control, certificates) = (access_log?, control?, certificates?);
    Ok(format!(
        "\
# The configuration that `penstock demo` runs: a file to start from.
# `penstock check FILE` finds mistakes in it, `penstock serve --config FILE` runs it.

[process]
drain-timeout = \"2s\" # how long open connections may go on when the server is stopped

[access-log]
target = {access_log}

[control]
socket = {control} # for `penstock ctl`

[admin]
bind = \"127.0.0.1:0\" # metrics; port 0 takes a free one

[listener.web]
bind = \"127.0.0.1:{http_port}\" # on a server: \":80\"
protocol = \"http\"
pool = \"{POOL}\"

[listener.secure]
bind = \"127.0.0.1:{https_port}\" # on a server: \":443\"
protocol = \"http\"
pool = \"{POOL}\"
tls = {{ certificates = {certificates} }}
hsts = \"off\" # a browser would remember it for every port of localhost; leave this line out on a server

[pool.{POOL}]
backends = [
{backends}]
health = {{ http = \"/healthz\", interval = \"1s\", timeout = \"500ms\", rise = 2, fall = 2 }}
"
    ))
}

/// A TOML string: the escapes of JSON are among those of TOML.
fn string(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

fn path_string(path: &Path) -> anyhow::Result<String> {
    let text = path.to_str().filter(|text| !text.contains("${") && !text.contains(char::is_control));
    let text = text.with_context(|| {
        format!("{} cannot be written into a configuration; set TMPDIR to a plain path", path.display())
    })?;
    Ok(string(text))
}

fn last_lines(log: &Path) -> String {
    let text = fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<_> = text.lines().collect();
    lines[lines.len().saturating_sub(20)..]
        .iter()
        .map(|line| format!("  {}", plain(line)))
        .collect::<Vec<_>>()
        .join("\n")
}

/// Where the table goes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Screen {
    /// It can be drawn over.
    Terminal,
    /// A file, a pipe: whole lines, not many.
    Lines,
}

impl Screen {
    fn detect() -> Self {
        let dumb = env::var_os("TERM").is_none_or(|term| term == "dumb" || term.is_empty());
        if io::stdout().is_terminal() && !dumb { Screen::Terminal } else { Screen::Lines }
    }

    fn default_traffic(self) -> u32 {
        match self {
            Screen::Terminal => 20,
            Screen::Lines => 0,
        }
    }

    fn interval(self) -> Duration {
        match self {
            Screen::Terminal => Duration::from_secs(1),
            Screen::Lines => Duration::from_secs(5),
        }
    }

    fn show(self, table: &mut Table) -> Result<(), Failure> {
        match self {
            Screen::Terminal => print(&table.draw()),
            Screen::Lines => table.news(std::time::Instant::now()).map_or(Ok(()), |line| print(&line)),
        }
    }

    fn note(self, table: &mut Table, note: String) -> Result<(), Failure> {
        match self {
            Screen::Terminal => {
                table.note(note);
                print(&table.draw())
            }
            Screen::Lines => print(&format!("{note}\n")),
        }
    }
}

/// Which backend is taken down: each in turn, and up again before the next.
#[derive(Default)]
struct Victim {
    at: usize,
    down: Option<usize>,
}

impl Victim {
    fn next(&mut self, backends: &[Backend]) -> String {
        if let Some(down) = self.down.take() {
            backends[down].switch(Power::On);
            return format!("{} is started again", backends[down].name);
        }
        let at = self.at % backends.len();
        backends[at].switch(Power::Off);
        self.at += 1;
        self.down = Some(at);
        format!("{} is killed", backends[at].name)
    }
}

async fn until(end: Option<Instant>) {
    match end {
        Some(end) => time::sleep_until(end).await,
        None => std::future::pending().await,
    }
}

/// Name of the demo's pool.
const POOL: &str = "hello";

/// The first backend goes down soon, so that nobody has to wait for it.
const FIRST_SWITCH: Duration = Duration::from_secs(5);

const SWITCH_INTERVAL: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn configuration_of_the_demo_is_valid_and_has_no_warnings() {
        let directory = tempfile::tempdir().unwrap();
        let backends = backend::start(directory.path()).unwrap();
        let file = |name: &str| directory.path().join(name);
        let files = Files {
            configuration: file("c"),
            authority: file("ca"),
            control: file("s"),
            access_log: file("a \"quoted\" log"),
            log: file("l"),
        };
        let arguments =
            Arguments { http_port: 0, https_port: 8443, traffic: None, kill_one: false, seconds: None };
        let text = configuration(&arguments, &files, &file("certificates"), &backends).unwrap();
        let source = config::Source { name: "demo".into(), text };
        let loaded = config::load(&source, &Default::default()).unwrap_or_else(|faults| panic!("{faults}"));
        assert!(loaded.warnings.is_empty(), "{}", loaded.warnings);
        assert_eq!(loaded.config.pools[0].backends.len(), 4);
    }

    #[test]
    fn one_backend_is_down_at_a_time_and_each_has_its_turn() {
        let directory = tempfile::tempdir().unwrap();
        let backends = backend::start(directory.path()).unwrap();
        let mut victim = Victim::default();
        let notes: Vec<_> = (0..10).map(|_| victim.next(&backends)).collect();
        assert_eq!(notes[0..3], ["tcp-1 is killed", "tcp-1 is started again", "tcp-2 is killed"]);
        assert_eq!(notes[7..10], ["unix-2 is started again", "tcp-1 is killed", "tcp-1 is started again"]);
    }
}
