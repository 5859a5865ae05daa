//! A client that speaks plain HTTP on a TLS port.

use logic::http1::error_page::{self, Page};
use logic::http1::request::{MethodKind, Persistence};
use state::events::http_date;

use crate::plain::Plain;

/// Status of the answer.
pub(crate) const STATUS: u16 = 400;

/// Returns the client's first byte without consuming it. `None` if the byte cannot be peeked at.
pub(crate) async fn first_byte(plain: &Plain) -> Option<u8> {
    let Plain::Tcp(tcp) = plain else { return None };
    let mut byte = [0];
    match tcp.peek(&mut byte).await {
        Ok(1) => Some(byte[0]),
        _ => None,
    }
}

/// Returns a readable error page that answers plain HTTP on a TLS port.
pub(crate) fn answer() -> Vec<u8> {
    let mut page = Vec::new();
    let date = http_date(std::time::SystemTime::now());
    error_page::write(
        &mut page,
        &Page {
            status: STATUS,
            detail: "This port speaks HTTPS, and the request came in plain HTTP.",
            request_id: "",
            accept: None,
            persistence: Persistence::Close,
            method: MethodKind::Other,
            extra: &[("Date", &date)],
            hsts: None,
        },
    );
    page
}
