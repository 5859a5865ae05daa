//! The socket on which a running tunnel is asked what it does, and told to end. Only its own user and root are answered.

use std::io;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use logic::tunnel::plan::Listen;
use nix::unistd::geteuid;
use sys::socket::SocketFile;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Semaphore, watch};
use tokio::time::timeout;

use super::place::{Found, PlaceError, Places, look, named, user};
use super::relay::causes;
use super::status::{Board, Status};

/// What can be asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asked {
    /// What it does.
    Status,
    /// To end. The answer comes when everything is down.
    Down,
}

impl Asked {
    fn word(self) -> &'static str {
        match self {
            Self::Status => "status",
            Self::Down => "down",
        }
    }
}

/// Why a tunnel cannot be asked.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// The directory of the sockets is not ours alone.
    #[error(transparent)]
    Place(#[from] PlaceError),
    /// Another user answers there.
    #[error("tunnel {tunnel} was not asked: {} answers on {}, and we are {}; remove that socket, and look who could make it", user(*.owner), .path.display(), user(geteuid().as_raw()))]
    Stranger {
        /// Its name.
        tunnel: String,
        /// The socket.
        path: PathBuf,
        /// Who listens there.
        owner: u32,
    },
    /// It runs, and says nothing.
    #[error("tunnel {tunnel} runs, but does not answer within {} s: {}", ANSWER.as_secs(), silent(*.process))]
    Silent {
        /// Its name.
        tunnel: String,
        /// Who should answer, as far as is known.
        process: Option<u32>,
    },
    /// A process works on it, which cannot be asked.
    #[error("process {process} works on tunnel {tunnel}, but cannot be asked on {}: it starts, ends or unwinds just now, or that socket was removed; `kill {process}` ends it", .path.display())]
    Deaf {
        /// Its name.
        tunnel: String,
        /// Which.
        process: u32,
        /// Where it would be asked.
        path: PathBuf,
    },
    /// What it says makes no sense.
    #[error("the answer of tunnel {tunnel} is not understood: is it of another version?")]
    Answer {
        /// Its name.
        tunnel: String,
        /// Why.
        source: serde_json::Error,
    },
    /// The kernel says no, or the tunnel broke off.
    #[error("cannot ask tunnel {tunnel}")]
    Io {
        /// Its name.
        tunnel: String,
        /// Why.
        source: io::Error,
    },
}

fn silent(process: Option<u32>) -> String {
    match process {
        Some(process) => format!("look at process {process} (is it stopped? kill -CONT {process})"),
        None => "too many ask it at once, or it is stopped".to_owned(),
    }
}

/// Asks a running tunnel. `None`: it does not run. A status comes within 5 s or not at all. The end takes as long as it takes,
/// while the tunnel says what it does when it is asked that.
///
/// # Errors
/// Somebody else's socket is there, which gets no word from us; or nothing that makes sense is said in time.
pub async fn ask(places: &Places, tunnel: &str, asked: Asked) -> Result<Option<Status>, AskError> {
    named(tunnel)?;
    let places = &places.of(tunnel);
    let Some(stream) = reach(places, tunnel).await? else {
        let deaf = |process| {
            let path = places.control(tunnel);
            Err(AskError::Deaf { tunnel: tunnel.to_owned(), process, path })
        };
        return places.holder(tunnel).map_or(Ok(None), deaf);
    };
    match asked {
        Asked::Status => within(tunnel, stream, asked).await,
        Asked::Down => {
            let mut answered = pin!(converse(tunnel, stream, asked));
            loop {
                if let Ok(answered) = timeout(ANSWER, &mut answered).await {
                    return answered;
                }
                // What is asked meanwhile only has to come: it may be over in between.
                if let Some(stream) = reach(places, tunnel).await?
                    && let Err(error @ AskError::Silent { .. }) = within(tunnel, stream, Asked::Status).await
                {
                    return Err(error);
                }
            }
        }
    }
}

/// Another tunnel than this one, which listens there, on this side.
pub(crate) async fn other_listening(places: &Places, tunnel: &str, at: &Listen) -> Option<String> {
    let at = at.to_string();
    for name in places.known().ok()?.into_iter().filter(|name| name != tunnel) {
        if let Ok(Some(status)) = ask(places, &name, Asked::Status).await
            && status.forwards.iter().any(|forward| forward.kind != "remote" && forward.listen == at)
        {
            return Some(name);
        }
    }
    None
}

/// How long a process that is well takes at most to say so.
const ANSWER: Duration = Duration::from_secs(5);

/// A connection to the tunnel, and to nobody else.
async fn reach(places: &Places, tunnel: &str) -> Result<Option<UnixStream>, AskError> {
    if look(&places.runtime)? == Found::Nothing {
        return Ok(None);
    }
    let path = places.control(tunnel);
    let failed = |source| AskError::Io { tunnel: tunnel.to_owned(), source };
    let stream = match UnixStream::connect(&path).await {
        Ok(stream) => stream,
        Err(error) => match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => return Ok(None),
            // Nobody takes connections off its queue.
            io::ErrorKind::WouldBlock => {
                return Err(AskError::Silent { tunnel: tunnel.to_owned(), process: None });
            }
            _ => return Err(failed(error)),
        },
    };
    let owner = sys::peer::credentials(&stream).map_err(failed)?.uid;
    match owner == geteuid().as_raw() {
        true => Ok(Some(stream)),
        false => Err(AskError::Stranger { tunnel: tunnel.to_owned(), path, owner }),
    }
}

async fn within(tunnel: &str, stream: UnixStream, asked: Asked) -> Result<Option<Status>, AskError> {
    let process = sys::peer::credentials(&stream).ok().and_then(|peer| peer.pid);
    let silent = || Err(AskError::Silent { tunnel: tunnel.to_owned(), process });
    timeout(ANSWER, converse(tunnel, stream, asked)).await.unwrap_or_else(|_| silent())
}

async fn converse(tunnel: &str, mut stream: UnixStream, asked: Asked) -> Result<Option<Status>, AskError> {
    let failed = |source| AskError::Io { tunnel: tunnel.to_owned(), source };
    stream.write_all(format!("{}\n", asked.word()).as_bytes()).await.map_err(failed)?;
    let mut answer = Vec::new();
    stream.take(LARGEST).read_to_end(&mut answer).await.map_err(failed)?;
    match serde_json::from_slice(&answer) {
        Ok(status) => Ok(Some(status)),
        // It ended while it was asked.
        Err(_) if answer.is_empty() => Ok(None),
        Err(source) => Err(AskError::Answer { tunnel: tunnel.to_owned(), source }),
    }
}

/// The answering side. Dropping it closes the socket.
pub(crate) struct Control {
    task: tokio::task::JoinHandle<()>,
    file: SocketFile,
    finished: watch::Sender<bool>,
}

impl Control {
    /// Listens. `stop` is called when the end is wanted.
    pub(crate) fn listen(
        places: &Places,
        tunnel: &str,
        board: Arc<Board>,
        stop: Arc<dyn Fn() + Send + Sync>,
    ) -> Result<Self, String> {
        let path = places.control(tunnel);
        let (listener, file) = sys::socket::listen_unix(&path, 0o600).map_err(|error| causes(&error))?;
        let listener = UnixListener::from_std(listener).map_err(|error| error.to_string())?;
        let finished = watch::Sender::new(false);
        let ends = finished.clone();
        let task = tokio::spawn(async move {
            let places = Arc::new(Semaphore::new(16));
            while let Ok(place) = Arc::clone(&places).acquire_owned().await {
                let Ok((stream, _)) = listener.accept().await else {
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    continue;
                };
                let (board, stop, ends) = (Arc::clone(&board), Arc::clone(&stop), ends.subscribe());
                tokio::spawn(async move {
                    // Whoever hangs up does not want to know.
                    let _ = answer(stream, &board, &*stop, ends).await;
                    drop(place);
                });
            }
        });
        Ok(Self { task, file, finished })
    }

    /// Tells those who wait for the end.
    pub(crate) async fn finish(self) {
        self.file.remove();
        self.finished.send_replace(true);
        // Their answers are on the way.
        let _ = timeout(Duration::from_secs(2), async {
            while self.finished.receiver_count() > 0 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await;
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn answer(
    mut stream: UnixStream,
    board: &Board,
    stop: &(dyn Fn() + Send + Sync),
    mut ends: watch::Receiver<bool>,
) -> io::Result<()> {
    let peer = sys::peer::credentials(&stream)?;
    if peer.uid != 0 && peer.uid != geteuid().as_raw() {
        return Ok(());
    }
    let mut words = [0; 16];
    let mut said = 0;
    while said < words.len() && !words[..said].contains(&b'\n') {
        match timeout(Duration::from_secs(5), stream.read(&mut words[said..])).await {
            Ok(Ok(count @ 1..)) => said += count,
            Ok(Err(error)) => return Err(error),
            Ok(Ok(_)) | Err(_) => return Ok(()),
        }
    }
    match words[..said].trim_ascii_end() {
        b"status" => {}
        b"down" => {
            stop();
            let _ = ends.wait_for(|ended| *ended).await;
        }
        _ => return Ok(()),
    }
    let status = serde_json::to_vec(&board.status()).map_err(io::Error::other)?;
    // Whoever does not take it holds one of a few places.
    timeout(ANSWER, stream.write_all(&status)).await??;
    stream.shutdown().await
}

/// A status is a few hundred bytes for each forward.
const LARGEST: u64 = 4 << 20;
