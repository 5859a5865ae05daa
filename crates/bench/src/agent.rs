//! Load processes: a run starts each one and sends it one task as a line of JSON; the process answers in lines of JSON.
//! The load runs in separate processes so that its CPU time is never counted as the target's.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::process::ChildStdin;
use std::rc::Rc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tokio::runtime::Builder;
use tokio::task::LocalSet;

use crate::address::Address;
use crate::context::Context;
use crate::error::Error;
use crate::load::gauge::{Gauge, Metered, Tally, Window};
use crate::load::{Order, message};
use crate::process::{self, Launch, Process};

#[derive(Debug)]
pub struct Agent {
    process: Process,
    /// Closing this pipe ends the process.
    _stdin: Option<ChildStdin>,
    events: Receiver<Event>,
}

/// Input of a load process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Task {
    pub order: Order,
    /// Time window in which units are counted; `None` for servers.
    pub window: Option<Window>,
    /// Process trees whose CPU time is read at both ends of the window.
    pub metered: Vec<Metered>,
}

/// Output of a load process.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Event {
    Listening(Vec<Address>),
    /// The window of a load is over.
    Done(Box<Tally>),
    Failed(String),
}

impl Agent {
    /// Starts a server on `cores` and waits until it listens. Returns its addresses in the sequence of the order.
    pub fn serve(
        context: &Context,
        name: &str,
        order: Order,
        cores: &[usize],
    ) -> Result<(Self, Vec<Address>), Error> {
        Self::serve_as(context, &Self::launch(context, name, cores), order)
    }

    /// Like [`Agent::serve`] with a custom command: `launch` must finally run this program's `bench-load` with the
    /// standard input and output of the command.
    pub fn serve_as(context: &Context, launch: &Launch, order: Order) -> Result<(Self, Vec<Address>), Error> {
        let mut agent = Self::start(context, launch, &Task { order, window: None, metered: Vec::new() })?;
        match agent.next(context, Duration::from_secs(10))? {
            Event::Listening(addresses) => Ok((agent, addresses)),
            Event::Failed(text) => Err(agent.failed(text)),
            Event::Done(_) => Err(agent.failed("it ended".to_owned())),
        }
    }

    /// Runs a load on the load's cores through its window and returns its tally.
    pub fn load(
        context: &Context,
        name: &str,
        order: Order,
        window: Window,
        metered: Vec<Metered>,
    ) -> Result<Tally, Error> {
        Self::load_as(context, &Self::launch(context, name, &context.cores.load), order, window, metered)
    }

    /// Like [`Agent::load`] with a custom command: see [`Agent::serve_as`].
    pub fn load_as(
        context: &Context,
        launch: &Launch,
        order: Order,
        window: Window,
        metered: Vec<Metered>,
    ) -> Result<Tally, Error> {
        let limit = window.warm_up + window.duration + MARGIN;
        let task = Task { order, window: Some(window), metered };
        let mut agent = Self::start(context, launch, &task)?;
        match agent.next(context, limit)? {
            Event::Done(tally) => Ok(*tally),
            Event::Failed(text) => Err(agent.failed(text)),
            Event::Listening(_) => Err(agent.failed("it listens".to_owned())),
        }
    }

    /// Builds the command of a load process.
    pub fn launch(context: &Context, name: &str, cores: &[usize]) -> Launch {
        Launch::new(name, &context.program, cores).arg("bench-load")
    }

    /// Process id, the root of the process tree.
    pub fn pid(&self) -> i32 {
        self.process.pid()
    }

    fn start(context: &Context, launch: &Launch, task: &Task) -> Result<Self, Error> {
        let (process, pipes) = Process::start_piped(context, launch)?;
        let (sender, events) = mpsc::channel();
        let stdin = pipes.map(|(mut stdin, stdout)| {
            let line = serde_json::to_string(task).expect("orders are made of plain values");
            process::tell(&mut stdin, &line);
            thread::spawn(move || {
                for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                    let event = serde_json::from_str(&line).unwrap_or(Event::Failed(line));
                    if sender.send(event).is_err() {
                        break;
                    }
                }
            });
            stdin
        });
        Ok(Agent { process, _stdin: stdin, events })
    }

    fn next(&mut self, context: &Context, limit: Duration) -> Result<Event, Error> {
        let start = Instant::now();
        loop {
            match self.events.recv_timeout(LOOK) {
                Ok(event) => return Ok(event),
                Err(RecvTimeoutError::Disconnected) => {
                    let log = self.process.last_words();
                    return Err(Error::Ended { what: self.process.name().to_owned(), log });
                }
                Err(RecvTimeoutError::Timeout) => context.check()?,
            }
            if start.elapsed() > limit {
                return Err(Error::NotReady {
                    what: self.process.name().to_owned(),
                    seconds: limit.as_secs(),
                    log: self.process.last_words(),
                });
            }
        }
    }

    fn failed(&self, text: String) -> Error {
        Error::Load { what: self.process.name().to_owned(), text }
    }
}

/// Main function of a load process: reads its task from standard input and performs it.
pub fn main() -> io::Result<()> {
    let mut line = String::new();
    io::stdin().lock().read_line(&mut line)?;
    let task: Task = serde_json::from_str(&line)?;
    // A load may need many descriptors for socket pairs and connections.
    sys::descriptors::raise_limit()?;
    end_with_stdin();
    if let Err(error) = perform(task) {
        say(&Event::Failed(error.to_string()))?;
    }
    Ok(())
}

fn perform(task: Task) -> io::Result<()> {
    let gauge = task.window.map(|window| Gauge::new(window, task.metered.clone()));
    let gauge = || gauge.clone().ok_or_else(|| io::Error::other("a load needs a window"));
    match task.order {
        Order::MessageServer(server) => {
            let (listener, address) = server.bind()?;
            say(&Event::Listening(vec![address]))?;
            server.run(&listener)
        }
        Order::MessageClient(client) => {
            let gauge = gauge()?;
            client.run(&gauge)?;
            done(&gauge)
        }
        Order::Packets(load) => {
            let gauge = gauge()?;
            load.run(&gauge)?;
            done(&gauge)
        }
        Order::Pipe(pipe) => {
            let gauge = gauge()?;
            pipe.run(&gauge)?;
            done(&gauge)
        }
        Order::Aead(aead) => {
            let gauge = gauge()?;
            aead.run(&gauge)?;
            done(&gauge)
        }
        Order::HttpBackend(backend) => in_tasks(async move {
            let listeners = backend.bind()?;
            say(&Event::Listening(listeners.addresses()?))?;
            backend.run(listeners).await
        }),
        Order::TrustStore(store) => say(&Event::Done(Box::new(store.load()?))),
        Order::TcpServer(server) => in_tasks(async move {
            let (listener, address) = server.bind()?;
            say(&Event::Listening(vec![address]))?;
            server.run(listener).await
        }),
        Order::UdpServer(server) => {
            let (socket, address) = server.bind()?;
            say(&Event::Listening(vec![address]))?;
            server.run(&socket)
        }
        Order::Spin => {
            say(&Event::Listening(Vec::new()))?;
            loop {
                std::hint::spin_loop();
            }
        }
        Order::Http(load) => {
            let gauge = gauge()?;
            in_tasks(through_window(gauge.clone(), async move { load.start(&gauge).await }))
        }
        Order::Https(load) => {
            let gauge = gauge()?;
            in_tasks(through_window(gauge.clone(), async move { load.start(&gauge).await }))
        }
        Order::Handshakes(load) => {
            let gauge = gauge()?;
            in_tasks(through_window(gauge.clone(), async move { load.start(&gauge).await }))
        }
        Order::Tcp(load) => {
            let gauge = gauge()?;
            in_tasks(through_window(gauge.clone(), async move { load.start(&gauge).await }))
        }
        Order::Udp(load) => {
            let gauge = gauge()?;
            in_tasks(through_window(gauge.clone(), async move { load.start(&gauge).await }))
        }
        Order::Idle(load) => {
            let gauge = gauge()?;
            in_tasks(through_window(gauge.clone(), async move { load.start(&gauge).await }))
        }
    }
}

/// Starts a load's tasks, waits until the window is over, and sends the tally. The tasks end with the process.
async fn through_window(gauge: Rc<Gauge>, start: impl Future<Output = io::Result<()>>) -> io::Result<()> {
    start.await?;
    gauge.run().await;
    done(&gauge)
}

fn in_tasks(work: impl Future<Output = io::Result<()>>) -> io::Result<()> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    LocalSet::new().block_on(&runtime, work)
}

fn done(gauge: &Gauge) -> io::Result<()> {
    say(&Event::Done(Box::new(gauge.tally())))
}

fn say(event: &Event) -> io::Result<()> {
    let mut line = serde_json::to_string(event)?;
    line.push('\n');
    let mut out = io::stdout().lock();
    out.write_all(line.as_bytes())?;
    out.flush()
}

/// Exits the process when standard input is closed, because the run has then ended.
fn end_with_stdin() {
    thread::spawn(|| {
        let mut rest = [0; 64];
        while !matches!(io::stdin().read(&mut rest), Ok(0) | Err(_)) {}
        std::process::exit(0);
    });
}

/// Answers questions on standard input, as the child process of a socketpair(2).
pub fn answer(size: usize) -> io::Result<()> {
    message::answer_on_stdin(size)
}

/// Interval of the checks for an interruption.
const LOOK: Duration = Duration::from_millis(100);

/// Time that a load may need outside its window: start, connections, reading meters.
const MARGIN: Duration = Duration::from_secs(20);
