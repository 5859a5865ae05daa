//! A channel with a running command: its signals, the fault of the host, and its end.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use russh::server::{Handle, Msg};
use russh::{Channel, ChannelMsg, ChannelReadHalf, Disconnect, Sig};
use tokio::sync::mpsc;

use crate::call::{Call, Ended};
use crate::disconnect::HOSTILE_DISCONNECT;
use crate::fault::{Fault, Kind, Parameter};
use crate::flood::Flood;
use crate::host::Host;
use crate::program::{Program, Stdin};
use crate::script::Sink;
use crate::wire::{Control, Cut};
use ssh::signal;

/// Connection, host and channel of a program.
pub(crate) struct Place {
    pub host: Arc<Host>,
    pub connection: u64,
    pub control: Arc<Control>,
    pub handle: Handle,
    pub fault: Option<Fault>,
}

/// Runs the request `call` in a channel, and closes the channel.
pub(crate) async fn run(place: Place, channel: Channel<Msg>, call: Call, environment: Vec<(String, String)>) {
    let id = channel.id();
    let (read, write) = channel.split();
    let (feed, stdin) = mpsc::unbounded_channel();
    let taken = Arc::new(AtomicU64::new(0));
    let stdin = Stdin { feed: stdin, taken: Arc::clone(&taken) };
    let mut program = Program::new(&place.host, write, stdin, environment);
    let hearing = ObeyedSignals::of(place.fault.as_ref());
    let ended = tokio::select! {
        ended = misbehave(&place, &mut program, call) => ended,
        ended = listen(read, feed, &taken, hearing) => ended,
    };
    let write = program.write;
    let note = |event: std::fmt::Arguments<'_>| place.host.note(place.connection, event);
    // An error from here on means that the client has closed the connection.
    let sent = match ended {
        Ended::Status(status) => {
            note(format_args!("ended status={status}"));
            write.exit_status(status).await.is_ok()
        }
        Ended::Signal(signal) => {
            note(format_args!("ended signal={signal:?}"));
            place.handle.exit_signal_request(id, signal, false, String::new(), String::new()).await.is_ok()
        }
        Ended::Untold => {
            note(format_args!("ended untold"));
            true
        }
        Ended::Left => {
            note(format_args!("left running"));
            false
        }
    };
    if place.fault.as_ref().is_some_and(|fault| fault.kind == Kind::HangClose) {
        place.control.gone().await;
        return;
    }
    if sent && write.eof().await.is_ok() {
        let _ = write.close().await;
    }
}

/// Acts out the host's fault, which replaces the command, follows it or wraps it.
async fn misbehave(place: &Place, program: &mut Program<'_>, call: Call) -> Ended {
    let Some(fault) = &place.fault else { return program.call(call).await };
    match fault.kind {
        Kind::HangRun | Kind::IgnoreTerm | Kind::Deaf => std::future::pending().await,
        Kind::Flood => program.print_all(Sink::Stdout, Flood::endless(program.host.seed())).await,
        Kind::FloodStderr => program.print_all(Sink::Stderr, Flood::endless(program.host.seed())).await,
        Kind::Reset => break_off(place, program, fault.number(), |control| control.cut(Cut::Reset)).await,
        Kind::Cut => break_off(place, program, fault.number(), |control| control.cut(Cut::Fin)).await,
        Kind::DisconnectRun => {
            let _ = program.print_all(Sink::Stdout, Flood::new(fault.number(), program.host.seed())).await;
            let text = HOSTILE_DISCONNECT.to_owned();
            let _ = place.handle.disconnect(Disconnect::ByApplication, text, "en".to_owned()).await;
            Ended::Left
        }
        Kind::NoStatus => {
            program.call(call).await;
            Ended::Untold
        }
        Kind::Escapes => {
            program.print_all(Sink::Stdout, escapes()).await;
            program.print_all(Sink::Stderr, escapes()).await;
            program.call(call).await
        }
        Kind::LongLine => {
            let pieces = Flood::new(fault.number(), program.host.seed());
            let pieces = pieces.map(|piece| piece.iter().map(|byte| (*byte).max(b' ')).collect::<Bytes>());
            program.print_all(Sink::Stdout, pieces).await;
            program.call(call).await
        }
        Kind::Drip => {
            for byte in Flood::new(64, program.host.seed()).flatten() {
                tokio::time::sleep(Duration::from_millis(fault.number())).await;
                program.print_all(Sink::Stdout, [Bytes::copy_from_slice(&[byte])]).await;
            }
            program.call(call).await
        }
        Kind::Exit => {
            program.call(call).await;
            Ended::Status(u32::try_from(fault.number()).unwrap_or(u32::MAX))
        }
        Kind::Signal => {
            program.call(call).await;
            match &fault.parameter {
                Parameter::Signal(name) => Ended::Signal(signal::named(name).unwrap_or(Sig::TERM)),
                _ => Ended::Signal(Sig::TERM),
            }
        }
        _ => program.call(call).await,
    }
}

/// Prints `bytes` bytes, waits until they are sent, and ends the connection.
async fn break_off(place: &Place, program: &Program<'_>, bytes: u64, cut: impl FnOnce(&Control)) -> Ended {
    let before = place.control.sent();
    program.print_all(Sink::Stdout, Flood::new(bytes, program.host.seed())).await;
    // A separate task of the session encrypts and sends. If the client does not read, the connection ends at the time
    // limit.
    for _ in 0..LONGEST_DISCONNECT.as_millis() {
        if place.control.sent() >= before + bytes {
            break;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    cut(&place.control);
    Ended::Left
}

/// Signals that end a program.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ObeyedSignals {
    All,
    KillOnly,
    Nothing,
}

impl ObeyedSignals {
    fn of(fault: Option<&Fault>) -> Self {
        match fault.map(|fault| fault.kind) {
            Some(Kind::IgnoreTerm) => Self::KillOnly,
            Some(Kind::Deaf) => Self::Nothing,
            _ => Self::All,
        }
    }

    fn obeys(self, signal: &Sig) -> bool {
        match self {
            Self::All => true,
            Self::KillOnly => matches!(signal, Sig::KILL),
            Self::Nothing => false,
        }
    }
}

/// Passes the client's data to the program, until a signal or the end of the channel.
async fn listen(
    mut read: ChannelReadHalf,
    feed: mpsc::UnboundedSender<Bytes>,
    taken: &AtomicU64,
    hearing: ObeyedSignals,
) -> Ended {
    let mut feed = Some(feed);
    let mut given: u64 = 0;
    loop {
        match read.wait().await {
            Some(ChannelMsg::Data { data }) => {
                given += data.len() as u64;
                if let Some(feed) = &feed {
                    // A program that has ended reads nothing, so an error is ignored.
                    let _ = feed.send(data);
                }
                // Above this limit the client waits until the program reads.
                while given.saturating_sub(taken.load(Ordering::Relaxed)) > MOST_UNREAD {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            }
            Some(ChannelMsg::Eof) => feed = None,
            Some(ChannelMsg::Signal { signal }) if hearing.obeys(&signal) => return Ended::Signal(signal),
            Some(ChannelMsg::Close) | None => return Ended::Left,
            Some(_) => {}
        }
    }
}

fn escapes() -> impl Iterator<Item = Bytes> + Send {
    ESCAPES.iter().copied().map(Bytes::from_static)
}

/// Output of the fault `escapes`, message by message. One character of two bytes is split over two messages, and the
/// last line has no line feed.
pub const ESCAPES: &[&[u8]] = &[
    b"clear \x1b[2J\x1b[H title \x1b]0;owned\x07 colour \x1b[31;1m bell \x07 c1 \x9b31m\n",
    b"back\x08\x08\x08\x08over\rcarriage return\r\nand a line feed\n",
    b"nul \x00 delete \x7f escape \x1b\n",
    b"split \xc3",
    b"\xa4 whole \xe2\x82\xac and broken \xff \xc3( \xe2\x82\n",
    "turned \u{202e}txet\u{202c} hidden \u{200b} end\n".as_bytes(),
    b"lab001 -> another host's line\n",
    b"no end \xf0\x9f",
];

/// Time limit for the last bytes before the connection is broken.
const LONGEST_DISCONNECT: Duration = Duration::from_secs(2);

/// Limit of unread input in bytes, more than any window: below it the connection keeps reading, so that signals and
/// window changes arrive.
const MOST_UNREAD: u64 = 64 * 1024 * 1024;
