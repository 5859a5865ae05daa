//! Sends one OCSP request to one responder over plain HTTP (RFC 6960 appendix A), limited in time and size, without
//! following redirects. Responses are signed, so the transport needs no protection.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, StatusCode, Uri, header};
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use logic::ocsp::Query;
use state::account::{Account, OF_REQUEST, Purpose, Turn};
use state::look_up::{self, look_up};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

/// Time limit of one request: DNS lookup, connection, request and response.
const LIMIT: Duration = Duration::from_secs(10);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Method {
    /// POST with the request as the body.
    Post,
    /// GET with the request in the path.
    Get,
}

#[derive(Debug, thiserror::Error)]
pub(super) enum FetchError {
    /// The URL is not plain HTTP, the only scheme that clients could use (RFC 6960 appendix A.1).
    #[error("is not an http:// address")]
    Scheme,
    #[error("its name has no address: {0}")]
    Lookup(io::Error),
    #[error("cannot be reached: {0}")]
    Connect(io::Error),
    #[error("did not answer within {} s", LIMIT.as_secs())]
    Timeout,
    #[error("answered {0}, not 200")]
    Status(StatusCode),
    #[error("sent more than {} KiB", logic::ocsp::LARGEST / 1024)]
    TooLarge,
    #[error("broke off: {0}")]
    Broken(String),
}

/// Returns host and port of a responder, to limit the requests per host.
pub(super) fn host(responder: &str) -> String {
    let uri = responder.parse::<Uri>().ok();
    uri.and_then(|uri| uri.authority().map(ToString::to_string)).unwrap_or_default()
}

/// Returns the raw response. The time limit starts when the request gets its turn.
pub(super) async fn fetch(
    responder: &str,
    method: Method,
    query: &Query,
    account: &Arc<Account>,
) -> Result<Vec<u8>, FetchError> {
    let turn = account.turn(Purpose::Staple, OF_REQUEST).await;
    tokio::time::timeout(LIMIT, ask(responder, method, query, turn)).await.unwrap_or(Err(FetchError::Timeout))
}

async fn ask(responder: &str, method: Method, query: &Query, turn: Turn) -> Result<Vec<u8>, FetchError> {
    let uri: Uri = responder.trim().parse().map_err(|_| FetchError::Scheme)?;
    let (Some("http"), Some(authority)) = (uri.scheme_str(), uri.authority()) else {
        return Err(FetchError::Scheme);
    };
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    let request = Request::builder()
        .header(header::HOST, authority.as_str())
        .header(header::ACCEPT, "application/ocsp-response")
        .header(header::USER_AGENT, "penstock");
    let request = match method {
        Method::Post => request
            .method(http::Method::POST)
            .uri(path)
            .header(header::CONTENT_TYPE, "application/ocsp-request")
            .body(Full::new(Bytes::from(query.request()))),
        Method::Get => request
            .uri(format!("{}/{}", path.trim_end_matches('/'), query.request_path()))
            .body(Full::default()),
    };
    let request = request.map_err(|_| FetchError::Scheme)?;
    let (turn, stream) = connect(authority.host(), authority.port_u16().unwrap_or(80), turn).await?;
    let broken = |error: hyper::Error| FetchError::Broken(error.to_string());
    let mut builder = http1::Builder::new();
    builder.max_buf_size(logic::ocsp::LARGEST);
    let (mut sender, connection) = builder.handshake(TokioIo::new(stream)).await.map_err(broken)?;
    // Dropping the set at the end of this function closes the connection.
    let mut driver = JoinSet::new();
    driver.spawn(async move {
        let _turn = turn;
        connection.await
    });
    let response = sender.send_request(request).await.map_err(broken)?;
    if response.status() != StatusCode::OK {
        return Err(FetchError::Status(response.status()));
    }
    match Limited::new(response.into_body(), logic::ocsp::LARGEST).collect().await {
        Ok(body) => Ok(body.to_bytes().to_vec()),
        Err(error) if error.is::<LengthLimitError>() => Err(FetchError::TooLarge),
        Err(error) => Err(FetchError::Broken(error.to_string())),
    }
}

async fn connect(host: &str, port: u16, turn: Turn) -> Result<(Turn, TcpStream), FetchError> {
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let (turn, addresses) = look_up(host, port, turn).await.map_err(FetchError::Lookup)?;
    let stream = look_up::connect(&addresses, LIMIT / 2).await.map_err(FetchError::Connect)?;
    Ok((turn, stream))
}
