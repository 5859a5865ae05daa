//! Responses that Penstock generates: short error pages and redirects. Text from the request is always escaped; caches
//! must not store error pages.

use super::grammar::elements;
use super::line::push_line;
use super::reason::reason_phrase;
use super::request::{MethodKind, Persistence};
use std::fmt::Write as _;
use std::io::Write as _;

#[derive(Clone, Copy, Debug)]
pub struct Page<'a> {
    /// Status, 400 to 599.
    pub status: u16,
    /// One sentence about the error, not yet escaped.
    pub detail: &'a str,
    /// Id of the request in the logs.
    pub request_id: &'a str,
    /// Value of the request's `Accept`; `None` if the head could not be parsed.
    pub accept: Option<&'a [u8]>,
    /// Whether the connection stays open.
    pub persistence: Persistence,
    /// A HEAD response has no body.
    pub method: MethodKind,
    /// Additional header lines, such as `Retry-After`.
    pub extra: &'a [(&'a str, &'a str)],
    /// Value of `Strict-Transport-Security`; only with TLS.
    pub hsts: Option<&'a str>,
}

#[derive(Clone, Copy, Debug)]
pub struct Redirect<'a> {
    /// Status code: 301, 302, 303, 307 or 308.
    pub status: u16,
    /// Target; bytes that are not valid in a URI are percent-encoded here.
    pub location: &'a str,
    pub persistence: Persistence,
    /// A HEAD response has no body.
    pub method: MethodKind,
    pub extra: &'a [(&'a str, &'a str)],
    /// Value of `Strict-Transport-Security`; only with TLS.
    pub hsts: Option<&'a str>,
}

/// Appends a complete response.
pub fn write(out: &mut Vec<u8>, page: &Page<'_>) {
    let reason = reason_phrase(page.status);
    let (content_type, body) = match wanted_format(page.accept) {
        Format::Html => ("text/html; charset=utf-8", html(page, reason)),
        Format::Json => ("application/json", json(page, reason)),
    };
    write_status_line(out, page.status, reason);
    push_line(out, b"Content-Type", content_type.as_bytes());
    push_line(out, b"Cache-Control", b"no-store");
    write_rest(out, page.persistence, page.extra, page.hsts, page.method, &body);
}

/// Appends a complete response.
pub fn write_redirect(out: &mut Vec<u8>, redirect: &Redirect<'_>) {
    let mut location = String::with_capacity(redirect.location.len());
    for byte in redirect.location.bytes() {
        match byte {
            b'!'..=b'~' if !b"\"<>\\^`{|}".contains(&byte) => location.push(char::from(byte)),
            _ => drop(write!(location, "%{byte:02X}")),
        }
    }
    let reason = reason_phrase(redirect.status);
    let mut body = String::from("<!doctype html><title>");
    let _ = write!(body, "{} {reason}</title><p>Moved to <a href=\"", redirect.status);
    escape_html(&mut body, &location);
    body.push_str("\">");
    escape_html(&mut body, &location);
    body.push_str("</a>.\n");
    write_status_line(out, redirect.status, reason);
    push_line(out, b"Location", location.as_bytes());
    push_line(out, b"Content-Type", b"text/html; charset=utf-8");
    write_rest(out, redirect.persistence, redirect.extra, redirect.hsts, redirect.method, &body);
}

enum Format {
    Html,
    Json,
}

/// JSON only for clients that prefer it: browsers send long lists, and most programs send `*/*`, for which HTML is
/// readable too.
fn wanted_format(accept: Option<&[u8]>) -> Format {
    let (mut html, mut json) = (0u16, 0u16);
    for range in elements(accept.unwrap_or_default()).take(32) {
        let mut parts = range.split(|&byte| byte == b';').map(super::grammar::trim);
        let media = parts.next().unwrap_or_default();
        let weight = parts.find_map(quality).unwrap_or(1000);
        let is = |name: &str| media.eq_ignore_ascii_case(name.as_bytes());
        if is("text/html") || is("application/xhtml+xml") || is("text/*") {
            html = html.max(weight);
        } else if is("application/json") || is("application/problem+json") || is("application/*") {
            json = json.max(weight);
        }
    }
    if json > html { Format::Json } else { Format::Html }
}

/// `q=0.5` in thousandths (RFC 9110 section 12.4.2); an invalid value is 0.
fn quality(parameter: &[u8]) -> Option<u16> {
    let value = match parameter {
        [b'q' | b'Q', b'=', value @ ..] => value,
        _ => return None,
    };
    match value {
        [b'1', ..] => Some(1000),
        [b'0', b'.', digits @ ..] if digits.len() <= 3 && digits.iter().all(u8::is_ascii_digit) => {
            let digit = |at: usize| digits.get(at).map_or(0, |digit| u16::from(digit - b'0'));
            Some(digit(0) * 100 + digit(1) * 10 + digit(2))
        }
        _ => Some(0),
    }
}

/// Writes a 200 response with a short plain text.
pub fn write_text(
    out: &mut Vec<u8>,
    text: &str,
    persistence: Persistence,
    method: MethodKind,
    extra: &[(&str, &str)],
) {
    write_status_line(out, 200, "OK");
    push_line(out, b"Content-Type", b"text/plain; charset=utf-8");
    push_line(out, b"Cache-Control", b"no-store");
    write_rest(out, persistence, extra, None, method, text);
}

fn html(page: &Page<'_>, reason: &str) -> String {
    let status = page.status;
    let mut body = String::with_capacity(640);
    let _ = write!(
        body,
        "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n<title>{status} {reason}</title>\n\
         <style>body{{font:1rem/1.5 system-ui,sans-serif;max-width:36rem;margin:15vh auto;padding:0 1rem}}\
         code{{color:#666}}</style>\n<h1>{status} {reason}</h1>\n<p>"
    );
    escape_html(&mut body, page.detail);
    if !page.request_id.is_empty() {
        body.push_str("</p>\n<p>Request id: <code>");
        escape_html(&mut body, page.request_id);
        body.push_str("</code>");
    }
    body.push_str("</p>\n</html>\n");
    body
}

fn json(page: &Page<'_>, reason: &str) -> String {
    let mut body = String::with_capacity(160);
    let _ = write!(body, "{{\"status\":{},\"error\":\"{reason}\",\"detail\":\"", page.status);
    escape_json(&mut body, page.detail);
    body.push_str("\",\"request_id\":\"");
    escape_json(&mut body, page.request_id);
    body.push_str("\"}\n");
    body
}

fn escape_html(out: &mut String, text: &str) {
    for character in text.chars() {
        match character {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            _ if character.is_control() => out.push(' '),
            _ => out.push(character),
        }
    }
}

fn escape_json(out: &mut String, text: &str) {
    for character in text.chars() {
        match character {
            '"' | '\\' => out.extend(['\\', character]),
            _ if character.is_control() => drop(write!(out, "\\u{:04x}", u32::from(character))),
            _ => out.push(character),
        }
    }
}

fn write_status_line(out: &mut Vec<u8>, status: u16, reason: &str) {
    let _ = write!(out, "HTTP/1.1 {status} {reason}\r\n");
}

fn write_rest(
    out: &mut Vec<u8>,
    persistence: Persistence,
    extra: &[(&str, &str)],
    hsts: Option<&str>,
    method: MethodKind,
    body: &str,
) {
    let _ = write!(out, "Content-Length: {}\r\n", body.len());
    // Both values are written: keep-alive is not the default of HTTP/1.0 clients.
    push_line(out, b"Connection", if persistence == Persistence::Close { b"close" } else { b"keep-alive" });
    if let Some(policy) = hsts {
        push_line(out, b"Strict-Transport-Security", policy.as_bytes());
    }
    for (name, value) in extra {
        push_line(out, name.as_bytes(), value.as_bytes());
    }
    out.extend_from_slice(b"\r\n");
    if method != MethodKind::Head {
        out.extend_from_slice(body.as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page() -> Page<'static> {
        Page {
            status: 502,
            detail: "no <b>answer</b> \"now\"\r\nX: y",
            request_id: "id-1",
            accept: None,
            persistence: Persistence::Close,
            method: MethodKind::Other,
            extra: &[("Retry-After", "1\r\nX-Evil: 1")],
            hsts: None,
        }
    }

    fn text(page: &Page<'_>) -> (String, String) {
        let mut out = Vec::new();
        write(&mut out, page);
        let text = String::from_utf8(out).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        (head.to_owned(), body.to_owned())
    }

    #[test]
    fn nothing_gets_out_of_its_place() {
        let (head, body) = text(&page());
        assert!(head.starts_with("HTTP/1.1 502 Bad Gateway\r\n"));
        assert!(head.contains("Retry-After: 1  X-Evil: 1"));
        assert!(!head.contains("\r\nX-Evil"));
        assert!(body.contains("no &lt;b&gt;answer&lt;/b&gt; &quot;now&quot;  X: y"));
        assert!(body.contains("<code>id-1</code>"));
        assert!(head.contains(&format!("Content-Length: {}\r\n", body.len())));
        assert!(head.contains("Cache-Control: no-store") && head.contains("Connection: close"));
    }

    #[test]
    fn json_is_for_those_who_prefer_it() {
        let format =
            |accept: &str| text(&Page { accept: Some(accept.as_bytes()), ..page() }).0.contains("/json");
        assert!(format("application/json"));
        assert!(format("text/html;q=0.5, application/json"));
        assert!(format("application/problem+json; q=0.1, */*;q=0.01"));
        assert!(!format("*/*"));
        assert!(!format("text/html,application/xhtml+xml,application/json;q=0.9,*/*;q=0.8"));
        assert!(!format("application/json;q=0"));
        assert!(!format(""));
        let (_, body) = text(&Page { accept: Some(b"application/json"), ..page() });
        let expected = "{\"status\":502,\"error\":\"Bad Gateway\",\"detail\":\"no <b>answer</b> \\\"now\\\"\\u000d\\u000aX: y\",\
                        \"request_id\":\"id-1\"}\n";
        assert_eq!(body, expected);
    }

    #[test]
    fn head_gets_the_length_but_no_body() {
        let (head, body) = text(&page());
        let (head_only, none) = text(&Page { method: MethodKind::Head, ..page() });
        assert_eq!((head, 0), (head_only, none.len()));
        assert!(!body.is_empty());
    }

    #[test]
    fn a_redirect_cannot_be_split_and_its_link_is_escaped() {
        let mut out = Vec::new();
        let redirect = Redirect {
            status: 308,
            location: "https://a/b c\r\nSet-Cookie: x\"<&'é?q=%41",
            persistence: Persistence::KeepAlive,
            method: MethodKind::Other,
            extra: &[],
            hsts: Some("max-age=1"),
        };
        write_redirect(&mut out, &redirect);
        let text = String::from_utf8(out).unwrap();
        assert!(
            text.contains("\r\nLocation: https://a/b%20c%0D%0ASet-Cookie:%20x%22%3C&'%C3%A9?q=%41\r\n"),
            "{text}"
        );
        assert!(text.contains("href=\"https://a/b%20c%0D%0ASet-Cookie:%20x%22%3C&amp;&#39;%C3%A9?q=%41\""));
        assert!(text.contains("\r\nStrict-Transport-Security: max-age=1\r\n"));
    }
}
