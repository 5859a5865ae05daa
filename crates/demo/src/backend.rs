//! The demo's backends: four small HTTP servers in this process, two on TCP and two on Unix sockets. They share one
//! thread. Each can be taken down, which closes its listener and its connections, and brought up again.

use std::convert::Infallible;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode, Version};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::{Semaphore, oneshot, watch};
use tokio::task::JoinSet;

#[derive(Debug)]
pub struct Backend {
    /// Name of the backend in its answers.
    pub name: &'static str,
    /// Address of the backend in the configuration.
    pub address: String,
    power: watch::Sender<Availability>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Availability {
    On,
    /// The listener and all connections are closed.
    Off,
}

impl Backend {
    /// Takes the backend down or up, within milliseconds.
    pub fn switch(&self, power: Availability) {
        self.power.send_replace(power);
    }
}

/// Starts all backends, with Unix sockets in `directory`. They run until the process ends.
pub fn start(directory: &Path) -> io::Result<Vec<Backend>> {
    let places = [
        ("tcp-1", Place::Tcp(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))),
        ("tcp-2", Place::Tcp(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))),
        ("unix-1", Place::Unix(directory.join("unix-1.sock"))),
        ("unix-2", Place::Unix(directory.join("unix-2.sock"))),
    ];
    let (started, wait) = std::sync::mpsc::channel();
    thread::Builder::new().name("demo-backends".to_owned()).spawn(move || {
        let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
            Ok(runtime) => runtime,
            Err(error) => return drop(started.send(Err(error))),
        };
        runtime.block_on(async {
            let mut running = JoinSet::new();
            for (name, place) in places {
                let (bound, when_bound) = oneshot::channel();
                let (power, switched) = watch::channel(Availability::On);
                running.spawn(run(name, place, switched, bound));
                let backend = match when_bound.await {
                    Ok(Ok(address)) => Ok(Backend { name, address, power }),
                    Ok(Err(error)) => Err(error),
                    Err(_) => Err(io::Error::other("a backend ended before it listened")),
                };
                if started.send(backend).is_err() {
                    return;
                }
            }
            drop(started);
            while running.join_next().await.is_some() {}
        });
    })?;
    wait.iter().collect()
}

#[derive(Clone, Debug)]
enum Place {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

/// Serves while the backend is on; closes its listener and connections while it is off.
async fn run(
    name: &'static str,
    mut place: Place,
    mut power: watch::Receiver<Availability>,
    bound: oneshot::Sender<io::Result<String>>,
) {
    let mut bound = Some(bound);
    loop {
        if power.wait_for(|power| *power == Availability::On).await.is_err() {
            return;
        }
        let listener = match listen(&mut place).await {
            Ok(listener) => listener,
            Err(error) => match bound.take() {
                Some(bound) => return drop(bound.send(Err(error))),
                // Another program uses the port. Until it is free, the backend stays down.
                None => {
                    tokio::time::sleep(Duration::from_millis(200)).await;
                    continue;
                }
            },
        };
        if let Some(bound) = bound.take() {
            let _ = bound.send(Ok(place.to_string()));
        }
        let mut connections = JoinSet::new();
        tokio::select! {
            () = accept(name, &listener, &mut connections) => {}
            gone = power.wait_for(|power| *power == Availability::Off) => if gone.is_err() { return },
        }
        drop(listener);
        connections.shutdown().await;
    }
}

async fn listen(place: &mut Place) -> io::Result<Listener> {
    match place {
        Place::Tcp(address) => {
            let listener = TcpListener::bind(*address).await?;
            *address = listener.local_addr()?;
            Ok(Listener::Tcp(listener))
        }
        Place::Unix(path) => {
            match std::fs::remove_file(&*path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
            Ok(Listener::Unix(UnixListener::bind(path)?))
        }
    }
}

async fn accept(name: &'static str, listener: &Listener, connections: &mut JoinSet<()>) {
    let slots = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        let Ok(slot) = slots.clone().acquire_owned().await else { return };
        while connections.try_join_next().is_some() {}
        let accepted = match listener {
            Listener::Tcp(listener) => listener.accept().await.map(|(stream, _)| {
                connections.spawn(async move {
                    let _ = stream.set_nodelay(true);
                    serve(name, stream).await;
                    drop(slot);
                });
            }),
            Listener::Unix(listener) => listener.accept().await.map(|(stream, _)| {
                connections.spawn(async move {
                    serve(name, stream).await;
                    drop(slot);
                });
            }),
        };
        if accepted.is_err() {
            // Usually the descriptors have run out. The pause keeps the loop from using all of the processor.
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

async fn serve(name: &'static str, stream: impl AsyncRead + AsyncWrite + Unpin) {
    let service = service_fn(move |request| async move { Ok::<_, Infallible>(answer(name, request).await) });
    // A broken connection is reported by the client.
    let _ = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(Duration::from_secs(60))
        .serve_connection(TokioIo::new(stream), service)
        .await;
}

async fn answer(name: &'static str, request: Request<Incoming>) -> Response<Full<Bytes>> {
    let mut response = match request.uri().path() {
        "/healthz" => text(StatusCode::OK, "ok\n".to_owned()),
        "/inspect" => inspect(name, &request),
        "/slow" => match slow_millis(request.uri().query()) {
            Ok(millis) => {
                tokio::time::sleep(Duration::from_millis(millis)).await;
                text(StatusCode::OK, format!("Hello there! from {name}, after {millis} ms\n"))
            }
            Err(message) => text(StatusCode::BAD_REQUEST, message),
        },
        _ => text(StatusCode::OK, format!("Hello there! from {name}\n")),
    };
    response.headers_mut().insert("x-backend", HeaderValue::from_static(name));
    response
}

fn text(status: StatusCode, text: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(text)));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    response
}

/// Answers with the head of the request as the backend received it, which shows the headers that the front door adds
/// and removes.
fn inspect(name: &str, request: &Request<Incoming>) -> Response<Full<Bytes>> {
    let headers: Vec<_> = request
        .headers()
        .iter()
        .map(|(header, value)| [header.to_string(), String::from_utf8_lossy(value.as_bytes()).into_owned()])
        .collect();
    let version = if request.version() == Version::HTTP_10 { "HTTP/1.0" } else { "HTTP/1.1" };
    let head = serde_json::json!({
        "backend": name,
        "method": request.method().as_str(),
        "target": request.uri().to_string(),
        "version": version,
        "headers": headers,
    });
    let mut response = Response::new(Full::new(Bytes::from(format!("{head:#}\n"))));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// The parameter `ms=N` of the query.
fn slow_millis(query: Option<&str>) -> Result<u64, String> {
    let value = query.unwrap_or_default().split('&').find_map(|pair| pair.strip_prefix("ms="));
    match value.map(str::parse) {
        None => Ok(1000),
        Some(Ok(millis)) if millis <= MAX_SLOW_MILLIS => Ok(millis),
        Some(_) => {
            Err(format!("ms must be a number of milliseconds, at most {MAX_SLOW_MILLIS}: /slow?ms=300\n"))
        }
    }
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Place::Tcp(address) => address.fmt(f),
            Place::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// Limit of the connections of one backend.
const MAX_CONNECTIONS: usize = 256;

/// Limit of the delay of `/slow`, in milliseconds.
const MAX_SLOW_MILLIS: u64 = 60_000;

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpStream;
    use std::os::unix::net::UnixStream;

    use super::*;

    fn get(backend: &Backend, path: &str) -> io::Result<String> {
        let request = format!("GET {path} HTTP/1.1\r\nHost: demo\r\nConnection: close\r\n\r\n");
        let mut answer = String::new();
        match backend.address.strip_prefix("unix:") {
            Some(socket) => {
                let mut stream = UnixStream::connect(socket)?;
                stream.write_all(request.as_bytes())?;
                stream.read_to_string(&mut answer)?;
            }
            None => {
                let mut stream = TcpStream::connect(&backend.address)?;
                stream.write_all(request.as_bytes())?;
                stream.read_to_string(&mut answer)?;
            }
        }
        Ok(answer)
    }

    #[test]
    fn each_backend_answers_with_its_own_name() {
        let directory = tempfile::tempdir().unwrap();
        let backends = start(directory.path()).unwrap();
        assert_eq!(backends.len(), 4);
        for backend in &backends {
            let answer = get(backend, "/").unwrap();
            assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
            assert!(answer.ends_with(&format!("Hello there! from {}\n", backend.name)), "{answer}");
            assert!(answer.contains(&format!("x-backend: {}\r\n", backend.name)), "{answer}");
            assert!(get(backend, "/healthz").unwrap().ends_with("\r\n\r\nok\n"));
        }
    }

    #[test]
    fn inspect_gives_back_the_head_as_json() {
        let directory = tempfile::tempdir().unwrap();
        let backends = start(directory.path()).unwrap();
        let answer = get(&backends[2], "/inspect?a=b").unwrap();
        let (_, body) = answer.split_once("\r\n\r\n").unwrap();
        let head: serde_json::Value = serde_json::from_str(body).unwrap();
        assert_eq!(head["target"], "/inspect?a=b");
        assert_eq!(head["backend"], "unix-1");
        assert_eq!(head["headers"][0], serde_json::json!(["host", "demo"]));
    }

    #[test]
    fn backend_that_is_off_refuses_and_comes_back_at_the_same_address() {
        let directory = tempfile::tempdir().unwrap();
        let backends = start(directory.path()).unwrap();
        for backend in &backends {
            backend.switch(Availability::Off);
            wait_until(|| get(backend, "/").is_err());
            backend.switch(Availability::On);
            wait_until(|| {
                get(backend, "/").is_ok_and(|answer| answer.ends_with(&format!("from {}\n", backend.name)))
            });
        }
    }

    #[test]
    fn slow_takes_a_bounded_number() {
        assert_eq!(slow_millis(None), Ok(1000));
        assert_eq!(slow_millis(Some("x=1&ms=5")), Ok(5));
        for bad in ["ms=", "ms=-1", "ms=60001", "ms=soon"] {
            assert!(slow_millis(Some(bad)).is_err(), "{bad}");
        }
    }

    fn wait_until(mut holds: impl FnMut() -> bool) {
        let end = std::time::Instant::now() + Duration::from_secs(20);
        while !holds() {
            assert!(std::time::Instant::now() < end, "it never came true");
            std::thread::yield_now();
        }
    }
}
