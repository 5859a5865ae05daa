//! A health check over HTTP/2.

use bytes::Bytes;
use http::uri::{Authority, PathAndQuery, Scheme, Uri};
use http::{Method, Request};
use logic::health::{Cause, CheckMethod};
use proxy::connect::Link;

/// Sends the request and returns the status of the final (not 1xx) answer.
pub(super) async fn ask(link: Link, method: CheckMethod, path: &str, host: &str) -> Result<u16, Cause> {
    let scheme = if matches!(link, Link::Tls(_)) { Scheme::HTTPS } else { Scheme::HTTP };
    let fault = |error: h2::Error| match error.is_io() {
        true => Cause::ClosedEarly,
        false => Cause::Http2(error.to_string()),
    };
    let request = question(method, scheme, path, host)
        .ok_or_else(|| Cause::Http2(format!("{host}{path} cannot be asked for")))?;
    let shaking_hands = h2::client::Builder::new().enable_push(false).handshake::<_, Bytes>(link);
    let (requests, connection) = shaking_hands.await.map_err(fault)?;
    let asking = async {
        let (response, _) = requests.ready().await?.send_request(request, true)?;
        response.await
    };
    tokio::select! {
        biased;
        response = asking => response.map(|response| response.status().as_u16()).map_err(fault),
        ended = connection => Err(ended.err().map_or(Cause::ClosedEarly, fault)),
    }
}

fn question(method: CheckMethod, scheme: Scheme, path: &str, host: &str) -> Option<Request<()>> {
    let mut uri = http::uri::Parts::default();
    uri.scheme = Some(scheme);
    uri.authority = Some(Authority::try_from(host).ok()?);
    uri.path_and_query = Some(PathAndQuery::try_from(path).ok()?);
    let agent = concat!("penstock-health/", env!("CARGO_PKG_VERSION"));
    let method = Method::from_bytes(method.as_str().as_bytes()).ok()?;
    let request = Request::builder().method(method).uri(Uri::from_parts(uri).ok()?);
    request.header("user-agent", agent).header("accept", "*/*").body(()).ok()
}
