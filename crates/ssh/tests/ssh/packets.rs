//! What the SSH library (`vendor/russh`) makes of its peer's bytes, however they are cut: its client and its server,
//! with pipes in memory.

use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, LazyLock, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use russh::client::DisconnectReason;
use russh::keys::{PrivateKey, PublicKeyOrCertificate, load_secret_key};
use russh::{Channel, ChannelMsg, Limits, Preferred, cipher, client, mac, server};
use testing::sshd::keygen;
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream, ReadBuf, duplex};
use tokio::time::timeout;

/// One end of a pipe, as its owner reads it.
struct Cut {
    pipe: DuplexStream,
    how: Arc<How>,
    /// Bytes that were held back.
    held: Vec<u8>,
}

/// How an end is read.
#[derive(Default)]
struct How {
    /// Most bytes per read; 0 for no limit.
    most: AtomicUsize,
    /// Reads wait until so many bytes are there.
    least: AtomicUsize,
    /// The most bytes that a read brought.
    largest: AtomicUsize,
    /// Bytes that are read instead of all that the peer sends from now on.
    instead: Mutex<Option<Vec<u8>>>,
    reader: Mutex<Option<Waker>>,
}

impl How {
    fn at_most(most: usize) -> Arc<Self> {
        Arc::new(Self { most: AtomicUsize::new(most), ..Self::default() })
    }

    fn replace(&self, bytes: &[u8]) {
        *self.instead.lock().unwrap() = Some(bytes.to_vec());
        if let Some(reader) = self.reader.lock().unwrap().take() {
            reader.wake();
        }
    }
}

impl AsyncRead for Cut {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        *this.how.reader.lock().unwrap() = Some(cx.waker().clone());
        if let Some(instead) = this.how.instead.lock().unwrap().as_mut() {
            if instead.is_empty() {
                return Poll::Pending;
            }
            let count = instead.len().min(buffer.remaining());
            buffer.put_slice(&instead[..count]);
            instead.drain(..count);
            return Poll::Ready(Ok(()));
        }
        let mut piece = vec![0; 64 * 1024];
        let mut ended = false;
        loop {
            let mut into = ReadBuf::new(&mut piece);
            match Pin::new(&mut this.pipe).poll_read(cx, &mut into)? {
                Poll::Ready(()) if into.filled().is_empty() => {
                    ended = true;
                    break;
                }
                Poll::Ready(()) => this.held.extend_from_slice(into.filled()),
                Poll::Pending => break,
            }
        }
        if !ended && (this.held.is_empty() || this.held.len() < this.how.least.load(Relaxed)) {
            return Poll::Pending;
        }
        this.how.least.store(0, Relaxed);
        let most = match this.how.most.load(Relaxed) {
            0 => usize::MAX,
            most => most,
        };
        let count = this.held.len().min(buffer.remaining()).min(most);
        buffer.put_slice(&this.held[..count]);
        this.held.drain(..count);
        this.how.largest.fetch_max(count, Relaxed);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Cut {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.pipe).poll_write(cx, data)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.pipe).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.pipe).poll_shutdown(cx)
    }
}

/// Accepts every host, counts the key exchanges, and keeps the reason of the end.
#[derive(Clone, Default)]
struct Near {
    exchanges: Arc<AtomicUsize>,
    end: Arc<Mutex<Option<russh::Error>>>,
}

impl client::Handler for Near {
    type Error = russh::Error;

    async fn check_server_key(&mut self, _: &PublicKeyOrCertificate) -> Result<bool, russh::Error> {
        Ok(true)
    }

    async fn kex_done(
        &mut self,
        _: Option<&[u8]>,
        _: &russh::Names,
        _: &mut client::Session,
    ) -> Result<(), russh::Error> {
        self.exchanges.fetch_add(1, Relaxed);
        Ok(())
    }

    async fn disconnected(&mut self, reason: DisconnectReason<russh::Error>) -> Result<(), russh::Error> {
        if let DisconnectReason::Error(fault) = reason {
            *self.end.lock().unwrap() = Some(fault);
        }
        Ok(())
    }
}

/// Sends `pieces` through each channel, and then its end.
struct Far(Vec<Vec<u8>>);

impl server::Handler for Far {
    type Error = russh::Error;

    async fn auth_none(&mut self, _: &str) -> Result<server::Auth, russh::Error> {
        Ok(server::Auth::Accept)
    }

    async fn channel_open_session(
        &mut self,
        channel: Channel<server::Msg>,
        reply: server::ChannelOpenHandle,
        _: &mut server::Session,
    ) -> Result<(), russh::Error> {
        reply.accept().await;
        let pieces = self.0.clone();
        tokio::spawn(async move {
            for piece in pieces {
                channel.data_bytes(piece).await.unwrap();
            }
            channel.eof().await.unwrap();
        });
        Ok(())
    }
}

struct Connection {
    client: client::Handle<Near>,
    near: Near,
    how: Arc<How>,
    _server: server::RunningSession<Far>,
}

impl Connection {
    /// Lets the client read `bytes` in place of all that follows, and returns the reason of the end.
    async fn end(self, bytes: &[u8]) -> russh::Error {
        self.how.replace(bytes);
        let fault = timeout(PATIENCE, self.client).await.expect("it ends").unwrap_err();
        assert!(matches!(fault, russh::Error::Disconnect), "a panic of its task? {fault:?}");
        self.near.end.lock().unwrap().take().unwrap()
    }
}

static KEY: LazyLock<PrivateKey> = LazyLock::new(|| {
    let directory = tempfile::tempdir().unwrap();
    keygen(&directory.path().join("host"), &["-t", "ed25519"]);
    load_secret_key(directory.path().join("host"), None).unwrap()
});

/// Logs in at a server that sends `pieces`. It can be `ahead` bytes ahead of the client, which changes its keys
/// after `limit` bytes.
async fn connected(
    (cipher, mac): (cipher::Name, mac::Name),
    how: Arc<How>,
    (ahead, limit): (usize, usize),
    pieces: Vec<Vec<u8>>,
) -> Connection {
    let (here, there) = duplex(ahead);
    let preferred = Preferred { cipher: vec![cipher].into(), mac: vec![mac].into(), ..Preferred::default() };
    let limits = |bytes| Limits::new(bytes, bytes, Duration::from_secs(3600));
    let client_config = Arc::new(client::Config {
        preferred: preferred.clone(),
        limits: limits(limit),
        window_size: 16 << 20,
        maximum_packet_size: 65_535,
        receive_buffer: ROOM,
        ..client::Config::default()
    });
    let server_config = Arc::new(server::Config {
        preferred,
        limits: limits(NEVER),
        keys: vec![KEY.clone()],
        ..server::Config::default()
    });
    let near = Near::default();
    let cut = |pipe, how| Cut { pipe, how, held: Vec::new() };
    let other = How::at_most(how.most.load(Relaxed));
    let (client, server) = tokio::join!(
        client::connect_stream(client_config, cut(here, Arc::clone(&how)), near.clone()),
        server::run_stream(server_config, cut(there, other), Far(pieces)),
    );
    let mut client = client.unwrap();
    assert!(client.authenticate_none("somebody").await.unwrap().success());
    Connection { client, near, how, _server: server.unwrap() }
}

/// What comes through a channel, up to its end.
async fn received(channel: &mut Channel<client::Msg>) -> Vec<u8> {
    let mut all = Vec::new();
    loop {
        match timeout(PATIENCE, channel.wait()).await.expect("the data come") {
            Some(ChannelMsg::Data { data }) => all.extend_from_slice(&data),
            Some(ChannelMsg::Eof) | None => return all,
            Some(_) => {}
        }
    }
}

fn pieces(sizes: impl IntoIterator<Item = usize>) -> Vec<Vec<u8>> {
    let mut state = 7_u8;
    let mut next = || {
        state = state.wrapping_mul(141).wrapping_add(3);
        state
    };
    sizes.into_iter().map(|size| (0..size).map(|_| next()).collect()).collect()
}

#[tokio::test]
async fn packets_arrive_whole_wherever_the_bytes_of_the_connection_are_cut() {
    for of in CIPHERS {
        // Reads of one byte cut every packet at every byte. The others end within, at and behind the ends of packets.
        for most in [1, 3, 16, 61, 4096, 0] {
            let sent = pieces((1..40).chain([8191, 8192, 8193, 40_000, 70_000]));
            let all = sent.concat();
            let connection = connected(of, How::at_most(most), (64 << 10, NEVER), sent).await;
            let mut channel = connection.client.channel_open_session().await.unwrap();
            assert!(received(&mut channel).await == all, "{of:?}, {most} bytes at once");
        }
    }
}

#[tokio::test]
async fn many_packets_of_one_read_arrive_in_order_and_so_does_what_follows() {
    let sent = pieces((0..3000).map(|n| 1 + n % 29).chain([30_000; 40]));
    let all = sent.concat();
    let connection = connected(CIPHERS[0], How::at_most(0), (4 << 20, NEVER), sent).await;
    // Nothing is read until all packets have been written.
    connection.how.least.store(all.len(), Relaxed);
    let mut channel = connection.client.channel_open_session().await.unwrap();
    assert!(received(&mut channel).await == all);
    let largest = connection.how.largest.load(Relaxed);
    assert!((ROOM / 2..=ROOM).contains(&largest), "{largest} bytes at once");
}

#[tokio::test]
async fn packets_behind_a_key_exchange_are_read_with_the_new_keys() {
    for of in CIPHERS {
        for most in [0, 1000] {
            let sent = pieces((0..400).map(|n| 1 + n * 37 % 9000));
            let all = sent.concat();
            let connection = connected(of, How::at_most(most), (32 << 10, 64 << 10), sent).await;
            let mut channel = connection.client.channel_open_session().await.unwrap();
            assert!(received(&mut channel).await == all, "{of:?}, {most} bytes at once");
            let exchanges = connection.near.exchanges.load(Relaxed);
            assert!(exchanges > 3, "{of:?}: {exchanges} key exchanges");
        }
    }
}

#[tokio::test]
async fn data_that_is_kept_stays_what_it_is() {
    let sent = pieces([40_000; 150]);
    let connection = connected(CIPHERS[0], How::at_most(0), (4 << 20, NEVER), sent.clone()).await;
    let mut channel = connection.client.channel_open_session().await.unwrap();
    // The packets are long enough to be parts of the buffers. A third of them is kept, and the rest is dropped.
    let (mut kept, mut at) = (Vec::new(), 0);
    let all = sent.concat();
    while at < all.len() {
        if let Some(ChannelMsg::Data { data }) = timeout(PATIENCE, channel.wait()).await.unwrap() {
            let end = at + data.len();
            assert!(all[at..end] == data);
            if at / 40_000 % 3 == 0 {
                kept.push((at, data));
            }
            at = end;
        }
    }
    assert!(kept.len() >= 50);
    assert!(kept.iter().all(|(at, data)| all[*at..at + data.len()] == *data));
}

#[tokio::test]
async fn impossible_lengths_and_noise_end_the_connection_without_a_panic() {
    let noise = pieces([4096]).concat();
    let lengths = [0, 1, 11, 12, 28, LONGEST, LONGEST + 1, u32::MAX];
    let begun = lengths.map(|length| [&length.to_be_bytes(), &noise[..]].concat());
    for of in CIPHERS {
        for bytes in begun.iter().chain([&noise]) {
            let connection = connected(of, How::at_most(0), (64 << 10, NEVER), Vec::new()).await;
            // More than the longest packet, so that its end comes.
            let fault = connection.end(&bytes.repeat(80)).await;
            let known = matches!(
                fault,
                russh::Error::PacketSize(_) | russh::Error::DecryptionError | russh::Error::PacketAuth
            );
            assert!(known, "{of:?}: {fault:?}");
        }
    }
}

#[tokio::test]
async fn length_over_the_limit_is_refused_before_the_packet_has_come() {
    for length in [LONGEST + 1, u32::MAX] {
        let connection = connected(CIPHERS[0], How::at_most(0), (64 << 10, NEVER), Vec::new()).await;
        let fault = connection.end(&length.to_be_bytes()).await;
        assert!(matches!(fault, russh::Error::PacketSize(size) if size == length as usize), "{fault:?}");
    }
    let connection = connected(CIPHERS[0], How::at_most(0), (64 << 10, NEVER), Vec::new()).await;
    let fault = connection.end(&[&LONGEST.to_be_bytes()[..], &vec![7; LONGEST as usize + 16]].concat()).await;
    assert!(matches!(fault, russh::Error::DecryptionError), "the limit itself is allowed: {fault:?}");
}

/// Ciphers and codes that the reading treats differently.
const CIPHERS: [(cipher::Name, mac::Name); 5] = [
    (cipher::AES_128_GCM, mac::NONE),
    (cipher::CHACHA20_POLY1305, mac::NONE),
    (cipher::AES_128_CTR, mac::HMAC_SHA256_ETM),
    (cipher::AES_128_CTR, mac::HMAC_SHA256),
    (cipher::AES_128_CBC, mac::HMAC_SHA512),
];

/// The longest packet that the library accepts, without its length and code.
const LONGEST: u32 = 256 * 1024 + 33;
/// A limit for the change of keys that no test reaches.
const NEVER: usize = 1 << 30;
/// Size of the client's buffers.
const ROOM: usize = 256 * 1024;
const PATIENCE: Duration = Duration::from_secs(60);
