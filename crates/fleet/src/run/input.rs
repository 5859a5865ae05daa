//! Standard input of the command on every host: nothing, a script, or our own standard input, spooled to an unnamed
//! file.
//!
//! Every host reads the spool at its own speed, even if it starts late. So a slow host delays no other host, and memory
//! stays limited for an input of any size.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::{Semaphore, watch};

use super::writer::{InputClosed, Writer};

#[derive(Debug, Clone)]
pub enum Input {
    /// End of file at once.
    None,
    Bytes(Bytes),
    /// Our own standard input.
    Spool(Spool),
}

/// Bytes in a file, to which a thread may still append.
#[derive(Debug, Clone)]
pub struct Spool {
    file: Arc<File>,
    /// Limit of the threads that read the file at once, for all hosts together.
    readers: Arc<Semaphore>,
    progress: watch::Receiver<Progress>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Progress {
    length: u64,
    end: End,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum End {
    #[default]
    Open,
    Whole,
    Broken,
}

impl Spool {
    /// Copies `source` to the spool on a separate thread. `broken` gets the error of that thread, in words for the
    /// user.
    ///
    /// # Errors
    /// No temporary file can be made. The error is in words for the user.
    pub fn fill(
        mut source: impl Read + Send + 'static,
        broken: impl FnOnce(io::Error) + Send + 'static,
    ) -> io::Result<Self> {
        let directory = std::env::temp_dir();
        let file = nameless(&directory).map_err(|error| unkept(&directory, &error))?;
        let file = Arc::new(file);
        let (tell, progress) = watch::channel(Progress::default());
        let sink = Arc::clone(&file);
        std::thread::Builder::new().name("input".into()).spawn(move || {
            let mut buffer = vec![0; CHUNK];
            let mut length = 0;
            let end = loop {
                match source.read(&mut buffer) {
                    Ok(0) => break Ok(()),
                    Ok(count) => match sink.write_all_at(&buffer[..count], length) {
                        Ok(()) => length += count as u64,
                        Err(error) => break Err(unkept(&directory, &error)),
                    },
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                    Err(error) => {
                        let words = format!("cannot read standard input: {error}");
                        break Err(io::Error::new(error.kind(), words));
                    }
                }
                tell.send_replace(Progress { length, end: End::Open });
            };
            let done = if end.is_ok() { End::Whole } else { End::Broken };
            tell.send_replace(Progress { length, end: done });
            if let Err(error) = end {
                broken(error);
            }
        })?;
        Ok(Self { file, readers: Arc::new(Semaphore::new(READERS)), progress })
    }
}

impl Input {
    /// Writes the whole input and closes standard input. A command that closes its standard input early is no error.
    ///
    /// # Errors
    /// The spool could not be read to its end. Standard input stays open then, since the command must not take half an
    /// input for the whole. For the same reason the caller must keep the returned writer until the command has ended.
    pub(super) async fn feed(self, mut to: Writer) -> Result<(), (io::Error, Writer)> {
        let fed = match self {
            Self::None => Ok(Ok(())),
            Self::Bytes(bytes) => Ok(to.write(bytes).await),
            Self::Spool(spool) => spool.feed(&mut to).await,
        };
        match fed {
            Ok(Ok(())) => to.finish().await,
            Ok(Err(InputClosed)) => {}
            Err(error) => return Err((error, to)),
        }
        Ok(())
    }
}

impl Spool {
    /// Reads the spool at offset `at`, on a separate thread: the read may block if TMPDIR is on a disk that hangs, and
    /// timeouts and Ctrl-C must work all the same.
    async fn piece(&self, at: u64) -> io::Result<Bytes> {
        let turn = Arc::clone(&self.readers).acquire_owned().await.map_err(io::Error::other)?;
        let file = Arc::clone(&self.file);
        let read = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            let mut piece = vec![0; CHUNK];
            let count = loop {
                match file.read_at(&mut piece, at) {
                    Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    read => break read?,
                }
            };
            piece.truncate(count);
            Ok(piece.into())
        });
        read.await.map_err(io::Error::other)?
    }

    async fn feed(mut self, to: &mut Writer) -> io::Result<Result<(), InputClosed>> {
        let mut at = 0;
        loop {
            let progress = *self.progress.borrow_and_update();
            if at < progress.length {
                let piece = self.piece(at).await?;
                at += piece.len() as u64;
                if let Err(gone) = to.write(piece).await {
                    return Ok(Err(gone));
                }
                continue;
            }
            match progress.end {
                End::Whole => return Ok(Ok(())),
                // Standard input of the command stays open; the run is being stopped.
                End::Broken => return std::future::pending().await,
                End::Open => {}
            }
            if self.progress.changed().await.is_err() {
                return Err(io::Error::other("the thread that reads standard input failed"));
            }
        }
    }
}

fn unkept(directory: &Path, error: &io::Error) -> io::Error {
    let words = format!(
        "cannot keep standard input for hosts whose turn comes later in {}: {error}\n  hint: TMPDIR=DIRECTORY keeps it elsewhere",
        directory.display()
    );
    io::Error::new(error.kind(), words)
}

/// Creates a file that no other process can open and that the kernel removes when this program ends.
fn nameless(directory: &Path) -> io::Result<File> {
    let flags = nix::libc::O_TMPFILE | nix::libc::O_EXCL;
    let made = File::options().read(true).write(true).custom_flags(flags).mode(0o600).open(directory);
    match made.as_ref().map_err(io::Error::raw_os_error) {
        // Some file systems do not support O_TMPFILE.
        Err(Some(nix::libc::EOPNOTSUPP | nix::libc::EISDIR)) => {}
        _ => return made,
    }
    let name = format!("penstock-{}-{:016x}", std::process::id(), fastrand::u64(..));
    let path = directory.join(name);
    let file = File::options().read(true).write(true).create_new(true).mode(0o600).open(&path)?;
    std::fs::remove_file(&path)?;
    Ok(file)
}

const CHUNK: usize = 32 * 1024;
const READERS: usize = 4;

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn spool_has_no_name_and_is_ours_alone() {
        let directory = tempfile::tempdir().unwrap();
        let about = nameless(directory.path()).unwrap().metadata().unwrap();
        assert_eq!((about.mode() & 0o7777, about.nlink()), (0o600, 0));
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
    }

    #[tokio::test]
    async fn spool_that_cannot_be_read_ends_the_feeding() {
        let (told, tells) = std::sync::mpsc::channel();
        let spool = Spool::fill(io::repeat(7).take(100_000), move |error| told.send(error).unwrap()).unwrap();
        spool.clone().progress.wait_for(|progress| progress.end == End::Whole).await.unwrap();
        assert!(tells.recv().is_err(), "it was taken in");
        spool.file.set_len(50_000).unwrap();
        let (to, mut from) = tokio::net::unix::pipe::pipe().unwrap();
        let reading = tokio::spawn(async move {
            let mut all = Vec::new();
            tokio::io::AsyncReadExt::read_to_end(&mut from, &mut all).await.unwrap();
            all.len()
        });
        let fed = Input::Spool(spool).feed(Writer::Pipe(Some(to))).await;
        let (error, writer) = fed.err().unwrap();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
        drop(writer);
        assert_eq!(reading.await.unwrap(), 50_000);
    }
}
