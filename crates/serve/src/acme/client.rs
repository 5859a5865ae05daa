//! HTTPS client for an authority: one connection per request, with a time limit and a size limit of the answer.

use std::cell::Cell;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HOST, RETRY_AFTER};
use http::{HeaderMap, HeaderValue, Request, Response, Uri};
use http_body_util::{BodyExt, Limited};
use hyper_util::rt::TokioIo;
use instant_acme::{BodyWrapper, BytesResponse, HttpClient, Problem};
use rustls::crypto::aws_lc_rs;
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::ServerName;
use state::account::{Account, OF_REQUEST, Purpose, Turn};
use state::look_up::{self, look_up};
use tls::backend::Authorities;
use tokio_rustls::TlsConnector;

use super::fault::{ClientError, Fault, short};
use crate::causes::causes;

/// Time limit of one request with its answer.
const LIMIT: Duration = Duration::from_secs(30);

/// Largest answer in bytes. A certificate chain is a few kilobytes.
const LARGEST: usize = 1024 * 1024;

#[derive(Clone)]
pub(super) struct Client {
    connector: TlsConnector,
    limit: Duration,
    /// The account of descriptors. Each request reserves its descriptors in it.
    account: Arc<Account>,
}

tokio::task_local! {
    /// `Retry-After` of the last answer, if that was an error. Orders run in parallel with one client: each has its own.
    static LAST_RETRY_AFTER: Cell<Option<Duration>>;
}

/// Does `work`, which may ask an authority. Also returns the `Retry-After` of the last answer, if that was an error.
pub(super) async fn with_retry_after<T>(work: impl Future<Output = T>) -> (T, Option<Duration>) {
    let noted = async {
        let done = work.await;
        (done, LAST_RETRY_AFTER.with(Cell::get))
    };
    LAST_RETRY_AFTER.scope(Cell::new(None), noted).await
}

impl Client {
    /// Makes a client that trusts the CAs in the file `ca`, or the CAs of the system if `None`. Reads files.
    pub(super) fn new(ca: Option<&Path>, account: Arc<Account>) -> Result<Self, Fault> {
        let roots = roots(ca)?;
        let builder = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| Fault::Crypto(error.to_string()))?;
        let mut config = builder.with_root_certificates(roots).with_no_client_auth();
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Self { connector: TlsConnector::from(Arc::new(config)), limit: LIMIT, account })
    }

    async fn ask(&self, request: Request<BodyWrapper<Bytes>>) -> Result<BytesResponse, ClientError> {
        let host = request.uri().authority().map(ToString::to_string).unwrap_or_default();
        let turn = self.account.turn(Purpose::Authority, OF_REQUEST).await;
        match tokio::time::timeout(self.limit, self.exchange(request, &host, turn)).await {
            Ok(answer) => answer,
            Err(_) => Err(ClientError::Late { host, limit: self.limit }),
        }
    }

    async fn exchange(
        &self,
        mut request: Request<BodyWrapper<Bytes>>,
        host: &str,
        turn: Turn,
    ) -> Result<BytesResponse, ClientError> {
        let broken =
            |why: &dyn std::error::Error| ClientError::Broken { host: host.to_owned(), why: causes(why) };
        let (name, port) =
            target(request.uri()).ok_or_else(|| ClientError::Url(request.uri().to_string()))?;
        let server =
            ServerName::try_from(name.clone()).map_err(|_| ClientError::Url(request.uri().to_string()))?;
        let unreachable = |source| ClientError::Connect { host: host.to_owned(), source };
        let (turn, addresses) = look_up(&name, port, turn).await.map_err(unreachable)?;
        let tcp = look_up::connect(&addresses, self.limit / 2).await.map_err(unreachable)?;
        let tls = self
            .connector
            .connect(server, tcp)
            .await
            .map_err(|source| ClientError::Tls { host: host.to_owned(), source })?;
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(tls)).await.map_err(|error| broken(&error))?;
        // The connection task ends with `sender`, and then releases its descriptors.
        let connection = Connection(tokio::spawn(async move {
            let _turn = turn;
            connection.await
        }));
        let path = request.uri().path_and_query().map_or("/", |path| path.as_str());
        let path = path.parse::<Uri>().map_err(|_| ClientError::Url(request.uri().to_string()))?;
        if let Ok(value) = HeaderValue::from_str(host) {
            request.headers_mut().insert(HOST, value);
        }
        *request.uri_mut() = path;
        let answer = sender.send_request(request).await.map_err(|error| broken(&error))?;
        let (parts, body) = answer.into_parts();
        let body = Limited::new(body, LARGEST).collect().await.map_err(|error| broken(&*error))?.to_bytes();
        drop(connection);
        Self::judge(host, Response::from_parts(parts, body))
    }

    /// Refuses an answer that no ACME server sends, and notes its `Retry-After`.
    fn judge(host: &str, answer: Response<Bytes>) -> Result<BytesResponse, ClientError> {
        let (parts, body) = answer.into_parts();
        let kind = parts.headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
        let is_page = kind.starts_with("text/html");
        let is_error = parts.status.as_u16() >= 400;
        let asked = if is_error { retry_after(&parts.headers, SystemTime::now()) } else { None };
        // Where no one wants to know it, there is no place for it.
        let _ = LAST_RETRY_AFTER.try_with(|last| last.set(asked));
        let is_problem = || serde_json::from_slice::<Problem>(&body).is_ok();
        let is_fine = if parts.status.is_success() { !is_page } else { is_problem() };
        // The answer to a failed HEAD request for a nonce has no body; the library reports the missing nonce.
        if !is_fine {
            return Err(ClientError::Foreign {
                host: host.to_owned(),
                status: parts.status.as_u16(),
                kind: if kind.is_empty() { "no content type".to_owned() } else { short(kind) },
                body: String::from_utf8_lossy(&body[..body.len().min(200)]).into_owned(),
            });
        }
        Ok(BytesResponse { parts, body: Box::new(body) })
    }
}

impl HttpClient for Client {
    fn request(
        &self,
        request: Request<BodyWrapper<Bytes>>,
    ) -> Pin<Box<dyn Future<Output = Result<BytesResponse, instant_acme::Error>> + Send>> {
        let client = self.clone();
        Box::pin(async move {
            client.ask(request).await.map_err(|error| instant_acme::Error::Other(Box::new(error)))
        })
    }
}

/// Aborts the task of a connection when dropped.
struct Connection(tokio::task::JoinHandle<hyper::Result<()>>);

impl Drop for Connection {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Returns host and port of an `https` URL.
fn target(uri: &Uri) -> Option<(String, u16)> {
    let host = uri.host().filter(|host| !host.is_empty() && uri.scheme_str() == Some("https"))?;
    let host = host.trim_start_matches('[').trim_end_matches(']');
    Some((host.to_owned(), uri.port_u16().unwrap_or(443)))
}

/// Reads `Retry-After`: seconds or a date (RFC 9110 section 10.2.3).
fn retry_after(headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    let value = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    if let Ok(seconds) = value.parse::<u64>() {
        return Some(Duration::from_secs(seconds));
    }
    let date = jiff::fmt::rfc2822::parse(value).ok()?;
    SystemTime::from(date.timestamp()).duration_since(now).ok()
}

fn roots(ca: Option<&Path>) -> Result<Arc<RootCertStore>, Fault> {
    let setting = |why| Fault::Setting { key: "ca", why };
    let authorities = Authorities::default();
    let trusted = match ca {
        Some(path) => authorities.file(path),
        None => authorities.system(),
    };
    let trusted = trusted.map_err(setting)?;
    match (ca, trusted.unusable) {
        (Some(path), count @ 1..) => {
            Err(setting(format!("{}: {count} of its certificates cannot be used", path.display())))
        }
        _ => Ok(trusted.roots.clone()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn who_does_not_answer_is_waited_for_no_longer_than_the_limit() {
        let directory = tempfile::tempdir().unwrap();
        let ca = directory.path().join("ca.pem");
        let issued = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
        std::fs::write(&ca, issued.cert.pem()).unwrap();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let client =
            Client { limit: Duration::from_millis(50), ..Client::new(Some(&ca), Account::new(1)).unwrap() };
        let request = Request::builder().uri(format!("https://{address}/dir")).body(BodyWrapper::default());
        let error = client.ask(request.unwrap()).await.err().unwrap();
        assert!(error.is_unavailability());
        assert_eq!(error.to_string(), format!("{address}: no answer within 0.05 s"));
    }

    #[tokio::test]
    async fn each_order_has_the_retry_after_of_its_own_authority() {
        let answer = |status: u16, seconds: Option<&str>| {
            let mut answer =
                Response::builder().status(status).header(CONTENT_TYPE, "application/problem+json");
            if let Some(seconds) = seconds {
                answer = answer.header(RETRY_AFTER, seconds);
            }
            let _ = Client::judge("a.example", answer.body(Bytes::from("{}")).unwrap());
        };
        let both = std::sync::Arc::new(tokio::sync::Barrier::new(2));
        let waits = |seconds: &'static str| {
            let both = both.clone();
            tokio::spawn(with_retry_after(async move {
                answer(429, Some(seconds));
                both.wait().await;
            }))
        };
        let (one, other) = (waits("60"), waits("3600"));
        assert_eq!(one.await.unwrap().1, Some(Duration::from_secs(60)));
        assert_eq!(other.await.unwrap().1, Some(Duration::from_secs(3600)));
        let ended_well = with_retry_after(async {
            answer(503, Some("60"));
            answer(200, Some("60"));
        });
        assert_eq!(ended_well.await.1, None);
        answer(429, Some("60"));
        assert_eq!(with_retry_after(async {}).await.1, None);
    }

    #[test]
    fn the_time_to_come_again_is_read_as_seconds_and_as_a_date() {
        let headers =
            |value: &'static str| HeaderMap::from_iter([(RETRY_AFTER, HeaderValue::from_static(value))]);
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_445_412_400);
        let read = |value| retry_after(&headers(value), now).map(|wait| wait.as_secs());
        assert_eq!(read(" 120 "), Some(120));
        assert_eq!(read("Wed, 21 Oct 2015 07:28:00 GMT"), Some(80));
        for nothing in ["", "soon", "-5", "Wed, 21 Oct 2009 07:28:00 GMT"] {
            assert_eq!(read(nothing), None, "{nothing:?}");
        }
    }

    #[test]
    fn a_file_without_a_certificate_is_no_file_of_trust() {
        let directory = tempfile::tempdir().unwrap();
        let ca = directory.path().join("ca.pem");
        std::fs::write(&ca, "nothing").unwrap();
        let fault = Client::new(Some(&ca), Account::new(1)).err().unwrap().to_string();
        assert!(fault.contains("ca.pem: holds no certificate"), "{fault}");
        let fault = Client::new(Some(&ca.join("missing")), Account::new(1)).err().unwrap().to_string();
        assert!(fault.contains("cannot be read"), "{fault}");
    }
}
