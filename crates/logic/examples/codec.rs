//! Does one step of the HTTP/1.1 codec N times: `codec CASE N`. What `crates/penstock/tests/instructions/main.rs` counts.
//! The counts in `bench/instructions.toml` are of exactly these messages: another message is another count.

use logic::http1::chunked::{ChunkLimits, Decoder, Step, write_chunk_header, write_end};
use logic::http1::forward::{
    Answer, ForwardedHeaders, Scheme, Trust, Via, response_framing, write_request as forward,
    write_response as answer,
};
use logic::http1::request::{self, Limits, MethodKind, Parse, RequestKind, UpgradeWish, Version};
use logic::http1::response;
use logic::peers::Peer;
use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::process::ExitCode;

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let case = arguments.next().unwrap_or_default();
    let Some(times) = arguments.next().and_then(|times| times.parse::<u32>().ok()) else {
        return usage();
    };
    let worked = match case.as_str() {
        "parse-request" => parse_requests(times),
        "write-request" => write_requests(times),
        "parse-response" => parse_responses(times),
        "write-response" => write_responses(times),
        "decode-chunked" => decode_chunked(times),
        _ => return usage(),
    };
    worked.map_or(ExitCode::FAILURE, |()| ExitCode::SUCCESS)
}

fn usage() -> ExitCode {
    eprintln!("usage: codec parse-request|write-request|parse-response|write-response|decode-chunked N");
    ExitCode::from(2)
}

fn parse_requests(times: u32) -> Option<()> {
    let limits = Limits::default();
    for _ in 0..times {
        let parsed = request::parse(black_box(REQUEST), &limits);
        let Ok(Parse::Complete(head)) = black_box(parsed) else { return None };
        black_box(head);
    }
    Some(())
}

fn write_requests(times: u32) -> Option<()> {
    let Ok(Parse::Complete(head)) = request::parse(REQUEST, &Limits::default()) else { return None };
    let via = Via {
        peer: Peer::Ip(SocketAddr::new(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 7)), 4711)),
        local: Some(SocketAddr::new(IpAddr::V4(Ipv4Addr::new(198, 51, 100, 1)), 443)),
        scheme: Scheme::Https,
        trust: Trust::Stranger,
        request_id: Some((REQUEST_ID_HEADER, REQUEST_ID.as_bytes())),
        forwarded: ForwardedHeaders::Sent,
        client_certificate: &[],
    };
    let mut out = Vec::new();
    for _ in 0..times {
        out.clear();
        forward(&mut out, black_box(REQUEST), black_box(&head), black_box(&via), &[]);
        black_box(&mut out);
    }
    Some(())
}

fn parse_responses(times: u32) -> Option<()> {
    let limits = Limits::default();
    for _ in 0..times {
        let parsed = response::parse(black_box(RESPONSE), &limits, GET);
        let Ok(Parse::Complete(head)) = black_box(parsed) else { return None };
        black_box(head);
    }
    Some(())
}

fn write_responses(times: u32) -> Option<()> {
    let Ok(Parse::Complete(head)) = response::parse(RESPONSE, &Limits::default(), GET) else { return None };
    let side = Answer {
        persistence: head.persistence,
        client: Version::Http11,
        framing: response_framing(&head, Version::Http11),
        hsts: Some("max-age=31536000"),
        request_id: Some((REQUEST_ID_HEADER, REQUEST_ID.as_bytes())),
    };
    let mut out = Vec::new();
    for _ in 0..times {
        out.clear();
        answer(&mut out, black_box(RESPONSE), black_box(&head), black_box(&side), &[]);
        black_box(&mut out);
    }
    Some(())
}

/// 64 KiB of data in chunks of 4 KiB, read 16 KiB at a time: most reads end inside a chunk.
fn decode_chunked(times: u32) -> Option<()> {
    let mut body = Vec::new();
    for _ in 0..16 {
        write_chunk_header(&mut body, 4096);
        body.extend_from_slice(&[b'x'; 4096]);
        body.extend_from_slice(b"\r\n");
    }
    write_end(&mut body, &[]);
    for _ in 0..times {
        if decode(black_box(&body))? != 16 * 4096 {
            return None;
        }
    }
    Some(())
}

fn decode(body: &[u8]) -> Option<usize> {
    let mut decoder = Decoder::new(ChunkLimits::default());
    let mut data = 0;
    for mut read in body.chunks(16 * 1024) {
        while !read.is_empty() {
            let consumed = match decoder.decode(read).ok()? {
                Step::Data { offset, len } => {
                    data += black_box(&read[offset..offset + len]).len();
                    offset + len
                }
                Step::NeedMore { consumed } => consumed,
                Step::End { .. } => return Some(data),
            };
            read = &read[consumed..];
        }
    }
    None
}

const GET: RequestKind = RequestKind { method: MethodKind::Other, upgrade: UpgradeWish::NotAsked };
const REQUEST_ID_HEADER: &str = "X-Request-Id";
const REQUEST_ID: &str = "0123456789abcdef0123456789abcdef";

/// As a browser writes it: 12 header lines.
const REQUEST: &[u8] = b"GET /articles/2026/sockets?page=2&sort=new HTTP/1.1\r\n\
Host: www.example.com\r\n\
User-Agent: Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101 Firefox/128.0\r\n\
Accept: text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8\r\n\
Accept-Language: en-US,en;q=0.5\r\n\
Accept-Encoding: gzip, deflate, br\r\n\
Referer: https://www.example.com/articles/\r\n\
Cookie: session=5d41402abc4b2a76b9719d911017c592; theme=dark\r\n\
Connection: keep-alive\r\n\
Upgrade-Insecure-Requests: 1\r\n\
Sec-Fetch-Dest: document\r\n\
Sec-Fetch-Mode: navigate\r\n\
Cache-Control: max-age=0\r\n\
\r\n";

const RESPONSE: &[u8] = b"HTTP/1.1 200 OK\r\n\
Server: gunicorn\r\n\
Date: Fri, 20 Nov 2026 12:00:00 GMT\r\n\
Connection: keep-alive\r\n\
Content-Type: text/html; charset=utf-8\r\n\
Content-Length: 5120\r\n\
Cache-Control: private, max-age=0\r\n\
Vary: Accept-Encoding, Cookie\r\n\
ETag: \"33a64df551425fcc\"\r\n\
\r\n";
