//! `penstock demo`: runs the front door with backends, certificates and traffic. Its parts are in `crates/demo`.

use std::env;
use std::io::{self, IsTerminal};
use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use demo::outage::Outage;
use demo::stage::{Ports, Stage};
use demo::status;
use demo::table::Table;
use demo::traffic::Traffic;
use text::units;
use tokio::time::{self, Instant};

use crate::ctl::client::{Client, ClientError};
use crate::directory::Directory;
use crate::output::{Failure, print};
use crate::paste::program;
use crate::signals::Signals;

/// Try it: four backends, HTTP and HTTPS, a live table; nothing to configure
///
/// Starts two backends on TCP ports and two on Unix sockets, makes a throw-away certificate authority, runs a
/// server in front of them and prints what to try. Everything is on the loopback address and in one temporary
/// directory, which is removed at the end. Ctrl-C ends it.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
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
pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    // From here on signals no longer end the process directly, so that every exit removes all files.
    let mut signals = {
        let _context = runtime.enter();
        Signals::install()?
    };
    let directory = Directory::create("demo").map_err(|error| {
        Failure::runtime(format_args!("cannot make a directory in {}: {error}", env::temp_dir().display()))
    })?;
    let ports = Ports { http: arguments.http_port, https: arguments.https_port };
    let built = env::current_exe().context("cannot find this program");
    let built = built.and_then(|program| Stage::build(&program, ports, directory.path()));
    let stage = built.map_err(Failure::Runtime)?;
    let result = print(&stage.introduction(&program()))
        .and_then(|()| runtime.block_on(show(&stage, arguments, &mut signals)));
    stage.stop();
    let path = directory.path().display().to_string();
    drop(directory);
    result?;
    print(&format!("demo: ended, {path} is removed\n"))
}

/// Shows the table until a signal, the time limit, or an error.
async fn show(stage: &Stage, arguments: &Arguments, signals: &mut Signals) -> Result<(), Failure> {
    let screen = Screen::detect();
    let traffic = match arguments.traffic.unwrap_or(screen.default_traffic()) {
        0 => None,
        rate => Some(Traffic::start(stage.http, rate)?),
    };
    let names = stage.backends.iter().map(|backend| (backend.address.clone(), backend.name)).collect();
    let mut table = Table::new(names);
    let mut looks = status::watch(asker(stage.control()), screen.interval())?;
    let started = Instant::now();
    let end = arguments.seconds.map(|seconds| started + Duration::from_secs(seconds));
    let mut switches = time::interval_at(started + FIRST_SWITCH, SWITCH_INTERVAL);
    let mut victim = Outage::default();
    loop {
        tokio::select! {
            () = signals.any() => return Ok(()),
            () = until(end) => return Ok(()),
            look = looks.recv() => {
                let Some(look) = look else { return Err(Failure::runtime("nobody looks at the front door any more")) };
                let gone = look.status.as_ref().err().filter(|_| !stage.is_running());
                if gone.is_some() {
                    let log = stage.last_lines();
                    return Err(Failure::runtime(format_args!("the front door has ended; its last lines:\n{log}")));
                }
                table.update(look, traffic.as_ref().map(Traffic::take));
                screen.show(&mut table)?;
            }
            _ = switches.tick(), if arguments.kill_one => {
                let note = victim.next(&stage.backends);
                screen.note(&mut table, format!("demo: after {}: {note}", units::duration(started.elapsed())))?;
            }
        }
    }
}

/// Sends `status json` to the front door. Returns only the first line of an error: the table has no room for hints.
fn asker(socket: &Path) -> impl FnMut() -> Result<String, String> + Send + use<> {
    let socket = socket.to_owned();
    move || {
        let answer = Client::connect(&socket, ANSWER_LIMIT).and_then(|mut client| client.ask("status json"));
        let first_line = |error: ClientError| error.to_string().lines().next().unwrap_or_default().to_owned();
        Ok(answer.map_err(first_line)?.lines.join("\n"))
    }
}

/// Kind of standard output.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Screen {
    /// A terminal, where the table is redrawn.
    Terminal,
    /// A file or a pipe: whole lines at longer intervals.
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

async fn until(end: Option<Instant>) {
    match end {
        Some(end) => time::sleep_until(end).await,
        None => std::future::pending().await,
    }
}

/// Time until the first backend goes down: short, so that the user need not wait.
const FIRST_SWITCH: Duration = Duration::from_secs(5);

const SWITCH_INTERVAL: Duration = Duration::from_secs(10);

const ANSWER_LIMIT: Duration = Duration::from_secs(2);
