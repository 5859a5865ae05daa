//! A small HTTP/1.1 server as a backend with minimal cost. It runs in a load process (`penstock bench-load`) and
//! answers every GET with the same response.

use std::io;
use std::path::PathBuf;
use std::rc::Rc;

use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, UnixListener};
use tokio::task::{self, JoinSet};

use crate::address::Address;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct HttpBackend {
    pub listen: Vec<Address>,
    /// Length of the body in bytes.
    pub body: usize,
}

#[derive(Debug)]
pub struct Listeners(Vec<Listener>);

#[derive(Debug)]
enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener, PathBuf),
}

impl HttpBackend {
    pub fn bind(&self) -> io::Result<Listeners> {
        self.listen.iter().map(Listener::open).collect::<io::Result<_>>().map(Listeners)
    }

    pub async fn run(&self, listeners: Listeners) -> io::Result<()> {
        let body = "x".repeat(self.body);
        let head =
            format!("HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: {}\r\n", self.body);
        let keep: Rc<[u8]> = format!("{head}\r\n{body}").into_bytes().into();
        let close: Rc<[u8]> = format!("{head}Connection: close\r\n\r\n{body}").into_bytes().into();
        let mut tasks = JoinSet::new();
        for listener in listeners.0 {
            let (keep, close) = (keep.clone(), close.clone());
            tasks.spawn_local(async move { listener.serve(&keep, &close).await });
        }
        while let Some(ended) = tasks.join_next().await {
            ended.map_err(io::Error::other)??;
        }
        Ok(())
    }
}

impl Listeners {
    /// Actual addresses of the listeners, in the order of the request.
    pub fn addresses(&self) -> io::Result<Vec<Address>> {
        self.0
            .iter()
            .map(|listener| match listener {
                Listener::Tcp(listener) => listener.local_addr().map(Address::Tcp),
                Listener::Unix(_, path) => Ok(Address::Unix(path.clone())),
            })
            .collect()
    }
}

impl Listener {
    fn open(address: &Address) -> io::Result<Self> {
        let socket = address.listen()?;
        socket.set_nonblocking(true)?;
        match address {
            Address::Tcp(_) => TcpListener::from_std(socket.into()).map(Listener::Tcp),
            Address::Unix(path) => {
                UnixListener::from_std(socket.into()).map(|open| Listener::Unix(open, path.clone()))
            }
            other => Err(io::Error::other(format!("no HTTP over {other}"))),
        }
    }

    async fn serve(&self, keep: &Rc<[u8]>, close: &Rc<[u8]>) -> io::Result<()> {
        loop {
            let (keep, close) = (keep.clone(), close.clone());
            match self {
                Listener::Tcp(listener) => {
                    let (stream, _) = listener.accept().await?;
                    stream.set_nodelay(true)?;
                    task::spawn_local(async move { connection(stream, &keep, &close).await });
                }
                Listener::Unix(listener, _) => {
                    let (stream, _) = listener.accept().await?;
                    task::spawn_local(async move { connection(stream, &keep, &close).await });
                }
            }
        }
    }
}

async fn connection<S: AsyncRead + AsyncWrite + Unpin>(
    mut stream: S,
    keep: &[u8],
    close: &[u8],
) -> io::Result<()> {
    let mut buffer = [0; 16 * 1024];
    let mut filled = 0;
    loop {
        match request(&buffer[..filled]) {
            Request::Complete(length, Connection::Keep) => {
                stream.write_all(keep).await?;
                buffer.copy_within(length..filled, 0);
                filled -= length;
            }
            Request::Complete(_, Connection::Close) => return stream.write_all(close).await,
            Request::Partial if filled == buffer.len() => return Ok(()),
            Request::Broken => return Ok(()),
            Request::Partial => match stream.read(&mut buffer[filled..]).await? {
                0 => return Ok(()),
                count => filled += count,
            },
        }
    }
}

enum Request {
    /// Length in bytes of a complete request without a body.
    Complete(usize, Connection),
    Partial,
    Broken,
}

enum Connection {
    Keep,
    Close,
}

fn request(bytes: &[u8]) -> Request {
    if bytes.is_empty() {
        return Request::Partial;
    }
    let mut fields = [httparse::EMPTY_HEADER; 32];
    let mut request = httparse::Request::new(&mut fields);
    match request.parse(bytes) {
        Ok(httparse::Status::Complete(length)) => {
            let close = request.headers.iter().any(|field| {
                field.name.eq_ignore_ascii_case("connection") && field.value.eq_ignore_ascii_case(b"close")
            });
            Request::Complete(length, if close { Connection::Close } else { Connection::Keep })
        }
        Ok(httparse::Status::Partial) => Request::Partial,
        Err(_) => Request::Broken,
    }
}
