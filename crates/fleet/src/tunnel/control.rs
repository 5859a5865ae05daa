//! The socket on which a running tunnel is asked what it does, and told to end. Only its own user and root are answered.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use nix::unistd::geteuid;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Semaphore, watch};
use tokio::time::timeout;

use super::place::Places;
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

/// Asks a running tunnel. `None`: it does not run. A status comes within 5 s or not at all; the end takes as long as it takes.
pub async fn ask(places: &Places, tunnel: &str, asked: Asked) -> io::Result<Option<Status>> {
    let answered = converse(places, tunnel, asked);
    match asked {
        Asked::Down => answered.await,
        Asked::Status => timeout(ANSWER, answered).await.unwrap_or_else(|_| {
            let what = format!("tunnel {tunnel} runs, but does not answer within {} s", ANSWER.as_secs());
            Err(io::Error::new(io::ErrorKind::TimedOut, what))
        }),
    }
}

/// How long a process that is well takes at most to say so.
const ANSWER: Duration = Duration::from_secs(5);

async fn converse(places: &Places, tunnel: &str, asked: Asked) -> io::Result<Option<Status>> {
    let mut stream = match UnixStream::connect(places.control(tunnel)).await {
        Ok(stream) => stream,
        Err(error) => match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => return Ok(None),
            _ => return Err(error),
        },
    };
    stream.write_all(format!("{}\n", asked.word()).as_bytes()).await?;
    let mut answer = Vec::new();
    stream.take(LARGEST).read_to_end(&mut answer).await?;
    match serde_json::from_slice(&answer) {
        Ok(status) => Ok(Some(status)),
        // It ended while it was asked.
        Err(_) if answer.is_empty() => Ok(None),
        Err(error) => Err(io::Error::other(format!("the answer is not understood: {error}"))),
    }
}

/// The answering side. Dropping it closes the socket.
pub(crate) struct Control {
    task: tokio::task::JoinHandle<()>,
    path: std::path::PathBuf,
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
        let listener = sys::socket::listen_unix(&path, 0o600).map_err(|error| causes(&error))?;
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
        Ok(Self { task, path, finished })
    }

    /// Tells those who wait for the end.
    pub(crate) async fn finish(self) {
        let _ = std::fs::remove_file(&self.path);
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
    stream.write_all(&status).await?;
    stream.shutdown().await
}

/// A status is a few hundred bytes for each forward.
const LARGEST: u64 = 4 << 20;
