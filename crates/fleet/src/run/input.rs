//! What is sent to the standard input of every host: nothing, a script, or ours, spooled to a file without a name.
//!
//! Every host reads the spool at its own pace, also those whose turn comes late, so a slow host holds nobody back and
//! memory stays bounded whatever is piped in.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::{Semaphore, watch};

use super::engine::{Gone, Writer};

/// What every host gets on standard input.
#[derive(Debug, Clone)]
pub enum Input {
    /// Its end at once.
    None,
    /// These bytes.
    Bytes(Bytes),
    /// What comes in on our own.
    Spool(Spool),
}

/// Bytes in a file, more of which may be on their way.
#[derive(Debug, Clone)]
pub struct Spool {
    file: Arc<File>,
    /// Threads that read the file at once, for all hosts.
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
    /// Takes in `source` on a thread of its own. `broken` is told if that fails, in words for the user.
    ///
    /// # Errors
    /// No temporary file can be made. The words are for the user.
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
    /// Writes all of it and then the end. It is no fault if nobody takes it.
    ///
    /// # Errors
    /// Not all of it could be read. Its end was not sent then: half an input must not look like a whole one. For the same
    /// reason the writer must be kept until the command is ended.
    pub(super) async fn feed(self, mut to: Writer) -> Result<(), (io::Error, Writer)> {
        let fed = match self {
            Self::None => Ok(Ok(())),
            Self::Bytes(bytes) => Ok(to.write(bytes).await),
            Self::Spool(spool) => spool.feed(&mut to).await,
        };
        match fed {
            Ok(Ok(())) => to.finish().await,
            Ok(Err(Gone)) => {}
            Err(error) => return Err((error, to)),
        }
        Ok(())
    }
}

impl Spool {
    /// What is at this place. Mostly it is in memory still; but of much input some has gone to the disk, and TMPDIR may be on one
    /// that hangs, which must not hold up time limits and Ctrl-C: hence a thread that may wait.
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

    async fn feed(mut self, to: &mut Writer) -> io::Result<Result<(), Gone>> {
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
                // The end is never sent, and the run is being stopped.
                End::Broken => return std::future::pending().await,
                End::Open => {}
            }
            if self.progress.changed().await.is_err() {
                return Err(io::Error::other("the thread that reads standard input broke"));
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

/// A file that nobody else can open and that is gone when we are.
fn nameless(directory: &Path) -> io::Result<File> {
    let flags = nix::libc::O_TMPFILE | nix::libc::O_EXCL;
    let made = File::options().read(true).write(true).custom_flags(flags).mode(0o600).open(directory);
    match made.as_ref().map_err(io::Error::raw_os_error) {
        // Not every file system has files without a name.
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
