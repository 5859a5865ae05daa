//! Converts between types of the frame layer and HTTP/1.1 bytes.

use std::io;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue};
use logic::http1::chunked::ChunkLimits;
use logic::http1::chunked::write_chunk_header;
use logic::http1::request::{Limits, MAX_HEAD};

/// Returns `data` as one HTTP/1.1 chunk. `data` must not be empty: that would be the last chunk.
pub(super) fn chunk(data: &[u8]) -> Bytes {
    let mut chunk = Vec::with_capacity(data.len() + 16);
    write_chunk_header(&mut chunk, data.len());
    chunk.extend_from_slice(data);
    chunk.extend_from_slice(b"\r\n");
    chunk.into()
}

pub(super) fn append(map: &mut HeaderMap, name: &[u8], value: &[u8]) -> Option<()> {
    let name = HeaderName::from_bytes(name).ok()?;
    let value = HeaderValue::from_bytes(value).ok()?;
    map.try_append(name, value).ok().map(|_| ())
}

pub(super) fn broken(error: h2::Error) -> io::Error {
    if error.is_io() {
        return error.into_io().unwrap_or_else(|| io::ErrorKind::ConnectionAborted.into());
    }
    io::Error::new(io::ErrorKind::ConnectionReset, error)
}

/// Limits for heads that penstock wrote itself from heads within the configured limits.
pub(super) const OUR_OWN: Limits = Limits {
    head: MAX_HEAD,
    headers: 100_000,
    target: MAX_HEAD,
    body: None,
    trailers: ChunkLimits::OUR_OWN.trailers,
    interim: u32::MAX,
};
