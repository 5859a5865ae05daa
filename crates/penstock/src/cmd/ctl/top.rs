//! `penstock ctl top`: a view of a running server on a terminal.
//!
//! It is a client of the control socket like every other command: all it knows and does is a command that can be typed.
//! `top/state.rs` decides (a key and the state make the next state and an action), `top/draw.rs` turns the state into
//! lines, and `top/screen.rs` is the terminal. The server is asked by a thread, so that a slow answer delays no key.

use std::io::IsTerminal;
use std::sync::mpsc::{self, Receiver, Sender, TryRecvError};
use std::time::{Duration, Instant};

use clap::Args;
use serde_json::Value;

use super::{Format, Way};
use crate::ctl::client::Client;
use crate::output::{Failure, print, print_json};

mod draw;
mod screen;
mod state;

use screen::Screen;
use state::{Action, Size, View};

/// Interval at which the server is asked.
const REFRESH: Duration = Duration::from_secs(1);

/// Longest wait for a key before answers of the server are looked at.
const LOOK: Duration = Duration::from_millis(50);

/// Time for which a message hides the line of keys, unless a key is pressed.
const MESSAGE: Duration = Duration::from_secs(5);

/// Size of a picture where there is no terminal.
const PAPER: Size = Size { width: 120, height: 40 };

#[derive(Debug, Args)]
#[command(after_help = KEYS)]
pub(super) struct Top {
    /// Print the screen once and exit; with --json the data behind it. For scripts, and where there is no terminal
    #[arg(long)]
    once: bool,
}

const KEYS: &str = "\
Keys:
  arrows, Page Up, Page Down, Home, End   select a line
  Tab         go from the sessions to the backends and back
  s           sort sessions: by age, bytes, rate, open requests, newest
  /           show some sessions only: a listener, a backend, or a client's network
  k           end the selected session; it asks first
  d           drain the selected backend, or make it ready again; it asks first
  q, Ctrl-C   end";

/// Question to the thread that talks to the server.
struct Question {
    command: String,
    kind: Kind,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Status,
    Sessions,
    /// The operator asked for it, and sees the answer.
    Order,
}

struct Answer {
    kind: Kind,
    result: Result<String, String>,
}

pub(super) fn run(top: &Top, format: &Format, mut way: Way) -> Result<(), Failure> {
    if matches!(format, Format::Json) {
        return match top.once {
            true => print_once(&mut way),
            false => Err(Failure::usage(
                "top --json needs --once\n  hint: ctl sessions and ctl status answer with --json, too",
            )),
        };
    }
    let mut view = View::default();
    // An error of the first question is that of the command.
    let mut client = way.connect()?;
    for (command, kind) in questions(&view) {
        let answer = client.ask(&command)?.lines.join("\n");
        take(&mut view, &Answer { kind, result: Ok(answer) });
    }
    drop(client);
    if top.once {
        let size = screen::size().filter(|_| std::io::stdout().is_terminal()).unwrap_or(PAPER);
        return print(&draw::picture(&view, Size { height: size.height.max(PAPER.height), ..size }));
    }
    if !std::io::stdout().is_terminal() || !std::io::stdin().is_terminal() {
        return Err(Failure::usage(
            "top needs a terminal\n  hint: --once prints one picture; ctl sessions and ctl status answer with --json",
        ));
    }
    let (ask, questions) = mpsc::channel();
    let (tell, answers) = mpsc::channel();
    std::thread::Builder::new()
        .name("asker".to_owned())
        .spawn(move || talk(way, &questions, &tell))
        .map_err(Failure::from)?;
    let mut screen = Screen::enter().map_err(Failure::from)?;
    let shown = show(&mut view, &mut screen, &ask, &answers);
    drop(screen);
    shown
}

/// Prints the data behind the screen as JSON.
fn print_once(way: &mut Way) -> Result<(), Failure> {
    let mut client = way.connect()?;
    let mut parts = serde_json::Map::new();
    for ((command, _), name) in questions(&View::default()).into_iter().zip(["status", "sessions"]) {
        let answer = client.ask(&command)?.lines.join("\n");
        let part: Value = serde_json::from_str(&answer).map_err(|error| {
            Failure::runtime(format_args!("the answer of the server is no JSON: {error}"))
        })?;
        parts.insert(name.to_owned(), part);
    }
    print_json(&Value::from(parts).to_string())
}

/// Asks the server until the view is closed.
fn talk(mut way: Way, questions: &Receiver<Question>, tell: &Sender<Answer>) {
    let mut client = None;
    while let Ok(Question { command, kind }) = questions.recv() {
        let mut connected = match client.take() {
            Some(client) => Ok(client),
            // The terminal is the view's: it cannot be asked for a one-time password.
            None => way.connect().map(Client::without_password_source).map_err(|failure| failure.to_string()),
        };
        let result = connected.as_mut().map_err(|error| error.clone()).and_then(|client| {
            let answer = client.ask(&command).map_err(|error| error.to_string())?;
            Ok(answer.lines.join("\n"))
        });
        // After an error the connection may be in the middle of an answer.
        client = connected.ok().filter(|_| result.is_ok());
        if tell.send(Answer { kind, result }).is_err() {
            return;
        }
    }
}

/// Shows the view until the operator ends it.
fn show(
    view: &mut View,
    screen: &mut Screen,
    ask: &Sender<Question>,
    answers: &Receiver<Answer>,
) -> Result<(), Failure> {
    let mut due = Instant::now() + REFRESH;
    let mut waiting = 0_u32;
    let mut is_changed = true;
    let mut message = (view.sayings, Instant::now());
    loop {
        if message.0 != view.sayings {
            message = (view.sayings, Instant::now());
        }
        if !view.said.is_empty() && message.1.elapsed() >= MESSAGE {
            view.forget_said();
            is_changed = true;
        }
        loop {
            match answers.try_recv() {
                Ok(answer) => {
                    waiting = waiting.saturating_sub(1);
                    take(view, &answer);
                    if answer.kind == Kind::Order {
                        // Its effect is shown at once.
                        due = Instant::now();
                    }
                    is_changed = true;
                }
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => {
                    return Err(Failure::runtime("the view is closed"));
                }
            }
        }
        if waiting == 0 && Instant::now() >= due {
            due = Instant::now() + REFRESH;
            for (command, kind) in questions(view) {
                waiting += 1;
                // The thread lives as long as its receiver.
                let _ = ask.send(Question { command, kind });
            }
        }
        if is_changed {
            screen.draw(&draw::lines(view, screen.size())).map_err(Failure::from)?;
            is_changed = false;
        }
        let Some(key) = screen.key(LOOK).map_err(Failure::from)? else { continue };
        is_changed = true;
        match view.key(key, screen.size()) {
            Action::Nothing => {}
            Action::Quit => return Ok(()),
            Action::Refresh => due = Instant::now(),
            Action::Order(command) => {
                waiting += 1;
                let _ = ask.send(Question { command, kind: Kind::Order });
            }
        }
    }
}

fn questions(view: &View) -> [(String, Kind); 2] {
    [("status json".to_owned(), Kind::Status), (view.sessions_command(), Kind::Sessions)]
}

fn take(view: &mut View, answer: &Answer) {
    match (&answer.result, answer.kind) {
        (Ok(text), Kind::Order) => view.say(text),
        (Ok(text), kind) => match serde_json::from_str::<Value>(text) {
            Ok(value) if kind == Kind::Status => view.take_status(value),
            Ok(value) => view.take_sessions(value),
            Err(error) => view.fail(&format!("the answer of the server is no JSON: {error}")),
        },
        (Err(why), Kind::Sessions) => view.refuse_sessions(why),
        (Err(why), _) => view.fail(why),
    }
}
