//! Reads and writes of a connection without TLS. They do what tokio's do, without what its general interface needs: each
//! request and session makes a dozen of them.

use std::io;
use std::task::{Context, Poll, ready};

use socket2::SockRef;
use tls::plain::Plain;
use tokio::io::Interest;

/// Waits until there may be bytes, the end, or an error.
#[inline]
pub(super) fn poll_readable(plain: &Plain, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
    match plain {
        Plain::Tcp(tcp) => tcp.poll_read_ready(cx),
        Plain::Unix(unix) => unix.poll_read_ready(cx),
    }
}

fn poll_writable(plain: &Plain, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
    match plain {
        Plain::Tcp(tcp) => tcp.poll_write_ready(cx),
        Plain::Unix(unix) => unix.poll_write_ready(cx),
    }
}

/// Reads what has arrived. `WouldBlock`: nothing has, as far as the runtime knows.
#[inline]
pub(super) fn read(plain: &Plain, into: &mut [u8]) -> io::Result<usize> {
    let most = into.len();
    transfer(plain, Interest::READABLE, most, || receive(plain, into))
}

/// Like [`read`], but asks the kernel also if the runtime does not know that something has arrived.
pub(super) fn read_now(plain: &Plain, into: &mut [u8]) -> io::Result<usize> {
    let (most, mut is_asked) = (into.len(), false);
    let read = transfer(plain, Interest::READABLE, most, || {
        is_asked = true;
        receive(plain, into)
    });
    match read {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock && !is_asked => receive(plain, into),
        read => read,
    }
}

fn receive(plain: &Plain, into: &mut [u8]) -> io::Result<usize> {
    io::Read::read(&mut &*SockRef::from(plain), into)
}

/// Reads; `Ok(0)` is the end.
#[inline]
pub(super) fn poll_read(plain: &Plain, cx: &mut Context<'_>, into: &mut [u8]) -> Poll<io::Result<usize>> {
    loop {
        ready!(poll_readable(plain, cx))?;
        match read(plain, into) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            read => return Poll::Ready(read),
        }
    }
}

#[inline]
pub(super) fn poll_write(plain: &Plain, cx: &mut Context<'_>, from: &[u8]) -> Poll<io::Result<usize>> {
    loop {
        let written = transfer(plain, Interest::WRITABLE, from.len(), || SockRef::from(plain).send(from));
        match written {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => ready!(poll_writable(plain, cx))?,
            written => return Poll::Ready(written),
        }
    }
}

/// Calls the kernel if the runtime knows that the connection is ready. Less than `most` bytes show that nothing more has
/// arrived, or that there is no room for more: the runtime is told so, as if the kernel had been asked once more.
#[inline]
fn transfer(
    plain: &Plain,
    interest: Interest,
    most: usize,
    call: impl FnOnce() -> io::Result<usize>,
) -> io::Result<usize> {
    let mut short = None;
    let call = || {
        let count = call()?;
        if 0 < count && count < most {
            short = Some(count);
            return Err(io::ErrorKind::WouldBlock.into());
        }
        Ok(count)
    };
    let done = match plain {
        Plain::Tcp(tcp) => tcp.try_io(interest, call),
        Plain::Unix(unix) => unix.try_io(interest, call),
    };
    short.map_or(done, Ok)
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::io::{Read, Write};

    use tokio::net::UnixStream;

    use super::*;

    fn pair() -> (Plain, std::os::unix::net::UnixStream) {
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        (Plain::Unix(UnixStream::from_std(ours).unwrap()), theirs)
    }

    #[tokio::test]
    async fn reads_get_all_bytes_and_the_end_and_wait_between() {
        let (plain, mut peer) = pair();
        let mut into = [0; 8];
        for sent in [&b"abc"[..], b"12345678", b"d"] {
            peer.write_all(sent).unwrap();
            let count = poll_fn(|cx| poll_read(&plain, cx, &mut into)).await.unwrap();
            assert_eq!(&into[..count], sent);
        }
        let now = poll_fn(|cx| Poll::Ready(poll_read(&plain, cx, &mut into).is_pending())).await;
        assert!(now, "nothing has arrived");
        peer.write_all(b"last").unwrap();
        drop(peer);
        for expected in [4, 0, 0] {
            assert_eq!(poll_fn(|cx| poll_read(&plain, cx, &mut into)).await.unwrap(), expected);
        }
    }

    #[tokio::test]
    async fn a_write_waits_for_a_peer_that_reads_nothing_and_goes_on_when_it_does() {
        let (plain, mut peer) = pair();
        let bytes = vec![7; 64 * 1024];
        let mut written = 0;
        poll_fn(|cx| poll_writable(&plain, cx)).await.unwrap();
        while let Poll::Ready(count) = poll_fn(|cx| Poll::Ready(poll_write(&plain, cx, &bytes))).await {
            written += count.unwrap();
        }
        assert!(written > 0);
        let reading = std::thread::spawn(move || {
            let mut all = Vec::new();
            peer.read_to_end(&mut all).map(|_| all.len())
        });
        written += poll_fn(|cx| poll_write(&plain, cx, &bytes)).await.unwrap();
        drop(plain);
        assert_eq!(reading.join().unwrap().unwrap(), written);
    }
}
