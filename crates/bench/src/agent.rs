//! Load processes: started by a run, told what to do in one line of JSON, answering in lines of JSON.
//! They are processes of their own so that their CPU time is never the target's.

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
use crate::load::{Gauge, Metered, Order, Tally, Window, message};
use crate::process::{self, Launch, Process};

/// A load process that was started.
#[derive(Debug)]
pub struct Agent {
    process: Process,
    /// Its end tells the process to end.
    _stdin: Option<ChildStdin>,
    events: Receiver<Event>,
}

/// All that a load process is told.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Task {
    /// What to do.
    pub order: Order,
    /// When units count; servers do without.
    pub window: Option<Window>,
    /// Whose CPU time is read at both ends of the window.
    pub metered: Vec<Metered>,
}

/// What a load process says.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Event {
    /// A server listens here.
    Listening(Vec<Address>),
    /// A load went through its window.
    Done(Box<Tally>),
    /// It cannot go on.
    Failed(String),
}

impl Agent {
    /// Starts a server on the cores given and waits until it listens; gives its addresses in the order's order.
    pub fn serve(
        context: &Context,
        name: &str,
        order: Order,
        cores: &[usize],
    ) -> Result<(Self, Vec<Address>), Error> {
        Self::serve_as(context, &Self::launch(context, name, cores), order)
    }

    /// As [`Agent::serve`], started in a way of its own: in the end `launch` runs this program's `bench-load` with
    /// its standard input and output.
    pub fn serve_as(context: &Context, launch: &Launch, order: Order) -> Result<(Self, Vec<Address>), Error> {
        let mut agent = Self::start(context, launch, &Task { order, window: None, metered: Vec::new() })?;
        match agent.next(context, Duration::from_secs(10))? {
            Event::Listening(addresses) => Ok((agent, addresses)),
            Event::Failed(text) => Err(agent.failed(text)),
            Event::Done(_) => Err(agent.failed("it ended".to_owned())),
        }
    }

    /// Runs a load on the load's cores through its window and gives what it counted.
    pub fn load(
        context: &Context,
        name: &str,
        order: Order,
        window: Window,
        metered: Vec<Metered>,
    ) -> Result<Tally, Error> {
        Self::load_as(context, &Self::launch(context, name, &context.cores.load), order, window, metered)
    }

    /// As [`Agent::load`], started in a way of its own: see [`Agent::serve_as`].
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

    /// How a load process is started.
    pub fn launch(context: &Context, name: &str, cores: &[usize]) -> Launch {
        Launch::new(name, &context.program, cores).arg("bench-load")
    }

    /// The process: root of its tree.
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

/// The load process itself: reads its task from standard input, does it.
pub fn main() -> io::Result<()> {
    let mut line = String::new();
    io::stdin().lock().read_line(&mut line)?;
    let task: Task = serde_json::from_str(&line)?;
    // Only now: the socket pairs and connections of a load may need many.
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
        Order::Idle(load) => {
            let gauge = gauge()?;
            in_tasks(through_window(gauge.clone(), async move { load.start(&gauge).await }))
        }
    }
}

/// Starts a load's tasks, waits through the window, and says what was counted. The tasks end with the process.
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

/// The other end of standard input is the run: when it is gone, nobody wants this process.
fn end_with_stdin() {
    thread::spawn(|| {
        let mut rest = [0; 64];
        while !matches!(io::stdin().read(&mut rest), Ok(0) | Err(_)) {}
        std::process::exit(0);
    });
}

/// Answers questions on standard input: what a socketpair's child does.
pub fn answer(size: usize) -> io::Result<()> {
    message::answer_on_stdin(size)
}

/// How often an interruption is looked for.
const LOOK: Duration = Duration::from_millis(100);

/// What a load may need beside its window: start, connections, reading meters.
const MARGIN: Duration = Duration::from_secs(20);
