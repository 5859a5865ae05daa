//! Byte streams that a client may send, and what may become of them. The classes are those in which proxies have failed:
//! length against coding, spellings of both, chunks, request lines, hosts, field lines, and state after a message.

/// What must become of a vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// So many whole requests arrive, then a 4xx or 5xx answer and a closed connection.
    Refused(usize),
    /// So many whole requests arrive and are answered.
    Passes(usize),
    /// Both are right; not more than so many requests arrive.
    Either(usize),
}

/// One byte stream.
#[derive(Clone, Debug)]
pub(super) struct Vector {
    /// What it is, for messages.
    pub name: String,
    /// Exactly what the client sends before it ends its direction.
    pub bytes: Vec<u8>,
    /// What must become of it.
    pub fate: Fate,
}

use Fate::{Either, Passes, Refused};

/// All of them.
pub(super) fn all() -> Vec<Vector> {
    let mut list = Vec::new();
    lengths(&mut list);
    codings(&mut list);
    length_with_coding(&mut list);
    chunks(&mut list);
    trailers(&mut list);
    request_lines(&mut list);
    hosts(&mut list);
    field_lines(&mut list);
    state(&mut list);
    not_http(&mut list);
    list
}

fn add(list: &mut Vec<Vector>, name: impl Into<String>, bytes: impl AsRef<[u8]>, fate: Fate) {
    list.push(Vector { name: name.into(), bytes: bytes.as_ref().to_vec(), fate });
}

fn show(text: &[u8]) -> String {
    text.escape_ascii().to_string()
}

fn lengths(list: &mut Vec<Vector>) {
    let cases: &[(&[u8], Fate)] = &[
        (b"5", Passes(1)),
        (b" 5  ", Passes(1)),
        (b"\t5", Either(1)),
        (b"05", Either(1)),
        (b"", Refused(0)),
        (b"+5", Refused(0)),
        (b"-5", Refused(0)),
        (b"-0", Refused(0)),
        (b"0x5", Refused(0)),
        (b"5,5", Refused(0)),
        (b"5, 5", Refused(0)),
        (b"5,6", Refused(0)),
        (b"5,", Refused(0)),
        (b",5", Refused(0)),
        (b"5 5", Refused(0)),
        (b"5.0", Refused(0)),
        (b"5e0", Refused(0)),
        (b"5;a=b", Refused(0)),
        (b"\"5\"", Refused(0)),
        (b"five", Refused(0)),
        (b"5\x00", Refused(0)),
        (b"\x0b5", Refused(0)),
        (b"5\x0c", Refused(0)),
        (b"5\xa0", Refused(0)),
        (b"\xd9\xa5", Refused(0)),
        (b"1_0", Refused(0)),
        (b"18446744073709551616", Refused(0)),
        (b"18446744073709551621", Refused(0)),
        (b"4294967301000000000000005", Refused(0)),
    ];
    for (value, fate) in cases {
        let bytes =
            [b"POST /length HTTP/1.1\r\nHost: test\r\nContent-Length:", &b" "[..], value, b"\r\n\r\nhello"]
                .concat();
        add(list, format!("content-length {:?}", show(value)), bytes, *fate);
    }
    for (name, lines) in [
        ("two lengths that differ", "Content-Length: 5\r\nContent-Length: 6\r\n"),
        ("two lengths that agree", "Content-Length: 5\r\nContent-Length: 5\r\n"),
        ("two lengths, the second empty", "Content-Length: 5\r\nContent-Length:\r\n"),
        ("two lengths in different case", "Content-Length: 5\r\ncontent-length: 0\r\n"),
        ("length and its spelling with an underscore", "Content-Length: 5\r\nContent_Length: 0\r\n"),
        ("only the spelling with an underscore", "Content_Length: 5\r\n"),
        ("blank before the colon", "Content-Length : 5\r\n"),
        ("tab before the colon", "Content-Length\t: 5\r\n"),
        ("folded length", "Content-Length:\r\n 5\r\n"),
        ("length in a folded line", "X-A: b\r\n Content-Length: 5\r\n"),
        ("length named in Connection", "Content-Length: 5\r\nConnection: content-length\r\n"),
        (
            "length named in Connection among others",
            "Content-Length: 5\r\nConnection: close, Content-Length\r\n",
        ),
        ("NUL in the name of the length", "Content-Length\0: 5\r\n"),
        ("length after a bare LF", "X-A: b\nContent-Length: 5\r\n"),
        ("length after a bare CR", "X-A: b\rContent-Length: 5\r\n"),
    ] {
        add(list, name, format!("POST /length HTTP/1.1\r\nHost: test\r\n{lines}\r\nhello"), Refused(0));
    }
    add(
        list,
        "GET with a body",
        "GET /g HTTP/1.1\r\nHost: test\r\nContent-Length: 5\r\n\r\nhello",
        Either(1),
    );
    add(list, "length 0", "POST /zero HTTP/1.1\r\nHost: test\r\nContent-Length: 0\r\n\r\n", Passes(1));
    add(list, "POST without framing", "POST /none HTTP/1.1\r\nHost: test\r\n\r\n", Passes(1));
}

fn codings(list: &mut Vec<Vector>) {
    let cases: &[(&[u8], Fate)] = &[
        (b"chunked", Passes(1)),
        (b"Chunked", Passes(1)),
        (b"CHUNKED", Passes(1)),
        (b"  chunked\t", Either(1)),
        (b"", Refused(0)),
        (b"identity", Refused(0)),
        (b"chunked, chunked", Refused(0)),
        (b"chunked, identity", Refused(0)),
        (b"identity, chunked", Refused(0)),
        (b"gzip, chunked", Refused(0)),
        (b"gzip", Refused(0)),
        (b"chunked,", Refused(0)),
        (b",chunked", Refused(0)),
        (b"xchunked", Refused(0)),
        (b"chunkedx", Refused(0)),
        (b"chunk", Refused(0)),
        (b"chunked;q=1", Refused(0)),
        (b"\"chunked\"", Refused(0)),
        (b"'chunked'", Refused(0)),
        (b"chunked\x00", Refused(0)),
        (b"\x0bchunked", Refused(0)),
        (b"chunked\x0c", Refused(0)),
        (b"chunked\x7f", Refused(0)),
        (b"\xa0chunked", Refused(0)),
        (b"chun\xe4\xbbked", Refused(0)),
        (b"chu\tnked", Refused(0)),
    ];
    for (value, fate) in cases {
        let head = b"POST /coding HTTP/1.1\r\nHost: test\r\nTransfer-Encoding:";
        let bytes = [&head[..], b" ", value, b"\r\n\r\n5\r\nhello\r\n0\r\n\r\n"].concat();
        add(list, format!("transfer-encoding {:?}", show(value)), bytes, *fate);
    }
    for (name, lines) in [
        ("two codings, both chunked", "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n"),
        (
            "two codings, chunked then identity",
            "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n",
        ),
        (
            "two codings, identity then chunked",
            "Transfer-Encoding: identity\r\nTransfer-Encoding: chunked\r\n",
        ),
        ("coding with a blank before the colon", "Transfer-Encoding : chunked\r\n"),
        ("coding with a tab before the colon", "Transfer-Encoding\t: chunked\r\n"),
        ("coding with an underscore", "Transfer_Encoding: chunked\r\n"),
        ("folded coding", "Transfer-Encoding:\r\n chunked\r\n"),
        ("coding in a folded line", "X-A: b\r\n\tTransfer-Encoding: chunked\r\n"),
        ("coding after a bare LF", "X-A: b\nTransfer-Encoding: chunked\r\n"),
        ("coding after a bare CR", "X-A: b\rTransfer-Encoding: chunked\r\n"),
        ("coding with a NUL in its name", "Transfer-Encoding\0: chunked\r\n"),
        ("coding named in Connection", "Transfer-Encoding: chunked\r\nConnection: transfer-encoding\r\n"),
    ] {
        add(
            list,
            name,
            format!("POST /coding HTTP/1.1\r\nHost: test\r\n{lines}\r\n5\r\nhello\r\n0\r\n\r\n"),
            Refused(0),
        );
    }
    let old = "POST /old HTTP/1.0\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n";
    add(list, "chunked in HTTP/1.0", old, Refused(0));
    let old = "POST /old HTTP/1.0\r\nHost: test\r\nConnection: keep-alive\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n";
    add(list, "chunked in HTTP/1.0 with keep-alive", old, Refused(0));
    let get = "GET /g HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n";
    add(list, "GET with a chunked body", get, Either(1));
}

fn length_with_coding(list: &mut Vec<Vector>) {
    for (name, lines, body) in [
        ("length then chunked", "Content-Length: 6\r\nTransfer-Encoding: chunked\r\n", "0\r\n\r\nG"),
        ("chunked then length", "Transfer-Encoding: chunked\r\nContent-Length: 6\r\n", "0\r\n\r\nG"),
        (
            "length 4 with a request in the chunk",
            "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n",
            "5c\r\nGET /smuggled HTTP/1.1\r\n\r\n",
        ),
        (
            "length 0 with chunked",
            "Content-Length: 0\r\nTransfer-Encoding: chunked\r\n",
            "5\r\nhello\r\n0\r\n\r\n",
        ),
        ("length with an odd coding", "Content-Length: 5\r\nTransfer-Encoding: xchunked\r\n", "hello"),
        ("length with an empty coding", "Content-Length: 5\r\nTransfer-Encoding:\r\n", "hello"),
        ("length with identity", "Content-Length: 5\r\nTransfer-Encoding: identity\r\n", "hello"),
        (
            "length with a coding that has a blank before its colon",
            "Content-Length: 5\r\nTransfer-Encoding : chunked\r\n",
            "hello",
        ),
        (
            "length with a coding that has an underscore",
            "Content-Length: 5\r\nTransfer_Encoding: chunked\r\n",
            "hello",
        ),
        (
            "length with a folded coding",
            "Content-Length: 5\r\nX-A: b\r\n Transfer-Encoding: chunked\r\n",
            "hello",
        ),
        (
            "length with a coding after a bare LF",
            "Content-Length: 5\r\nX-A: b\nTransfer-Encoding: chunked\r\n",
            "hello",
        ),
        (
            "empty name that hides a coding",
            "Content-Length: 5\r\n: b\r\nTransfer-Encoding: chunked\r\n",
            "hello",
        ),
        (
            "coding hidden by a name with a blank",
            "Content-Length: 5\r\nFoo Transfer-Encoding: chunked\r\n",
            "hello",
        ),
    ] {
        add(list, name, format!("POST /both HTTP/1.1\r\nHost: test\r\n{lines}\r\n{body}"), Refused(0));
    }
}

fn chunks(list: &mut Vec<Vector>) {
    let sizes: &[(&[u8], Fate)] = &[
        (b"5", Passes(1)),
        (b"05", Passes(1)),
        (b"0000000000000005", Passes(1)),
        (b"5;a", Passes(1)),
        (b"5;a=b", Passes(1)),
        (b"5;a=\"b c\"", Passes(1)),
        (b"00000000000000005", Refused(0)),
        (b"", Refused(0)),
        (b" 5", Refused(0)),
        (b"\t5", Refused(0)),
        (b"5 ", Refused(0)),
        (b"5\t", Refused(0)),
        (b"5 ;a", Either(1)),
        (b"5; a", Either(1)),
        (b"5;", Refused(0)),
        (b"5;;a", Refused(0)),
        (b"5;a=", Refused(0)),
        (b"5;a=\"b", Refused(0)),
        (b"5;a\x00", Refused(0)),
        (b"5;a\rb", Refused(0)),
        (b"5;a\nb", Refused(0)),
        (b"5;\n", Refused(0)),
        (b"+5", Refused(0)),
        (b"-5", Refused(0)),
        (b"0x5", Refused(0)),
        (b"x5", Refused(0)),
        (b"5h", Refused(0)),
        (b"5_", Refused(0)),
        (b"5,5", Refused(0)),
        (b"5\x00", Refused(0)),
        (b"\"5\"", Refused(0)),
        (b"\xd9\xa5", Refused(0)),
        (b"FFFFFFFFFFFFFFFF", Refused(0)),
        (b"FFFFFFFFFFFFFFFB", Refused(0)),
        (b"10000000000000005", Refused(0)),
        (b"7FFFFFFFFFFFFFFF", Either(0)),
    ];
    let head = b"POST /chunk HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n";
    for (size, fate) in sizes {
        let bytes = [&head[..], size, b"\r\nhello\r\n0\r\n\r\n"].concat();
        add(list, format!("chunk size {:?}", show(size)), bytes, *fate);
    }
    let bodies: &[(&str, &[u8])] = &[
        ("chunk size ended by LF", b"5\nhello\r\n0\r\n\r\n"),
        ("chunk size ended by CR", b"5\rhello\r\n0\r\n\r\n"),
        ("chunk data ended by LF", b"5\r\nhello\n0\r\n\r\n"),
        ("chunk data ended by CR", b"5\r\nhello\r0\r\n\r\n"),
        ("chunk data without an end", b"5\r\nhello0\r\n\r\n"),
        ("chunk data longer than its size", b"5\r\nhello!\r\n0\r\n\r\n"),
        ("chunk data shorter than its size", b"6\r\nhello\r\n0\r\n\r\n"),
        ("last chunk ended by LF", b"5\r\nhello\r\n0\n\r\n"),
        ("message ended by LF", b"5\r\nhello\r\n0\r\n\n"),
        ("last chunk ended twice by LF", b"5\r\nhello\r\n0\n\n"),
        ("empty line between chunks", b"5\r\nhello\r\n\r\n0\r\n\r\n"),
        ("second size not hexadecimal", b"5\r\nhello\r\nzz\r\n"),
        ("negative last chunk", b"5\r\nhello\r\n-0\r\n\r\n"),
    ];
    for (name, body) in bodies {
        add(list, *name, [&head[..], body].concat(), Refused(0));
    }
    let long = [&head[..], b"5;", &[b'a'; 70_000], b"\r\nhello\r\n0\r\n\r\n"].concat();
    add(list, "chunk extension of 70,000 bytes", long, Refused(0));
    add(list, "last chunk 000", [&head[..], b"5\r\nhello\r\n000\r\n\r\n"].concat(), Passes(1));
    add(
        list,
        "last chunk with an extension",
        [&head[..], b"5\r\nhello\r\n0;a=b\r\n\r\n"].concat(),
        Passes(1),
    );
    let mut many = head.to_vec();
    for byte in b'a'..=b'z' {
        many.extend([b'1', b'\r', b'\n', byte, b'\r', b'\n']);
    }
    many.extend(b"0\r\n\r\n");
    add(list, "26 chunks of one byte", many, Passes(1));
}

fn trailers(list: &mut Vec<Vector>) {
    let head =
        "POST /trailer HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n";
    for (name, lines, fate) in [
        ("ordinary trailer", "X-Sum: 1\r\n", Passes(1)),
        ("Content-Length as a trailer", "Content-Length: 5\r\n", Either(1)),
        ("Transfer-Encoding as a trailer", "Transfer-Encoding: chunked\r\n", Either(1)),
        ("Host as a trailer", "Host: other\r\n", Either(1)),
        ("trailer with a blank before its colon", "X-Sum : 1\r\n", Refused(0)),
        ("trailer without a colon", "X-Sum\r\n", Refused(0)),
        ("trailer without a name", ": 1\r\n", Refused(0)),
        ("folded trailer", "X-Sum: 1\r\n 2\r\n", Refused(0)),
        ("trailer ended by LF", "X-Sum: 1\n", Refused(0)),
        ("trailer with a bare CR", "X-Sum: 1\r2\r\n", Refused(0)),
        ("trailer with a NUL", "X-Sum: 1\0\r\n", Refused(0)),
    ] {
        add(list, name, format!("{head}{lines}\r\n"), fate);
    }
    add(
        list,
        "trailers of 100,000 bytes",
        format!("{head}X-Sum: {}\r\n\r\n", "1".repeat(100_000)),
        Refused(0),
    );
}

fn request_lines(list: &mut Vec<Vector>) {
    let lines: &[(&[u8], Fate)] = &[
        (b"GET / HTTP/1.1", Passes(1)),
        (b"GET  / HTTP/1.1", Refused(0)),
        (b"GET /  HTTP/1.1", Refused(0)),
        (b" GET / HTTP/1.1", Refused(0)),
        (b"GET\t/\tHTTP/1.1", Refused(0)),
        (b"GET / HTTP/1.1 ", Refused(0)),
        (b"GET / HTTP/1.1\t", Refused(0)),
        (b"GET /a b HTTP/1.1", Refused(0)),
        (b"GET /", Refused(0)),
        (b"GET", Refused(0)),
        (b"GET / ", Refused(0)),
        (b"GET HTTP/1.1", Refused(0)),
        (b"/ HTTP/1.1", Refused(0)),
        (b"GET / http/1.1", Refused(0)),
        (b"GET / HTTP/1.2", Refused(0)),
        (b"GET / HTTP/1", Refused(0)),
        (b"GET / HTTP/1.", Refused(0)),
        (b"GET / HTTP/1.1.1", Refused(0)),
        (b"GET / HTTP/01.1", Refused(0)),
        (b"GET / HTTP/1.10", Refused(0)),
        (b"GET / HTTP/+1.1", Refused(0)),
        (b"GET / HTTP/2.0", Refused(0)),
        (b"GET / HTTP/0.9", Refused(0)),
        (b"GET / HTTP/3", Refused(0)),
        (b"GET / HTTPS/1.1", Refused(0)),
        (b"GET / HTTP /1.1", Refused(0)),
        (b"GET / RTSP/1.0", Refused(0)),
        (b"G\x00T / HTTP/1.1", Refused(0)),
        (b"GE:T / HTTP/1.1", Refused(0)),
        (b"GE(T / HTTP/1.1", Refused(0)),
        (b"\"GET\" / HTTP/1.1", Refused(0)),
        (b"G\xc3\x89T / HTTP/1.1", Refused(0)),
        (b"get / HTTP/1.1", Either(1)),
        (b"PURGE / HTTP/1.1", Either(1)),
        (b"GET /\x00 HTTP/1.1", Refused(0)),
        (b"GET /\x01 HTTP/1.1", Refused(0)),
        (b"GET /\x7f HTTP/1.1", Refused(0)),
        (b"GET /\x0b HTTP/1.1", Refused(0)),
        (b"GET /\xff HTTP/1.1", Refused(0)),
        (b"GET /a#b HTTP/1.1", Refused(0)),
        (b"GET a HTTP/1.1", Refused(0)),
        (b"GET ?a HTTP/1.1", Refused(0)),
        (b"GET * HTTP/1.1", Refused(0)),
        (b"OPTIONS * HTTP/1.1", Passes(1)),
        (b"GET //a HTTP/1.1", Passes(1)),
        (b"GET http://test/abs HTTP/1.1", Passes(1)),
        (b"GET http://test HTTP/1.1", Either(1)),
        (b"GET http:///abs HTTP/1.1", Refused(0)),
        (b"GET http:/abs HTTP/1.1", Refused(0)),
        (b"GET http://a@test/abs HTTP/1.1", Refused(0)),
        (b"GET ftp://test/abs HTTP/1.1", Refused(0)),
        (b"GET test:80 HTTP/1.1", Refused(0)),
        (b"CONNECT test:443 HTTP/1.1", Refused(0)),
        (b"CONNECT / HTTP/1.1", Refused(0)),
        (b"GET / HTTP/1.1\r", Refused(0)),
        (b"GET / HTTP/1.1\x00", Refused(0)),
    ];
    for (line, fate) in lines {
        add(
            list,
            format!("request line {:?}", show(line)),
            [line, &b"\r\nHost: test\r\n\r\n"[..]].concat(),
            *fate,
        );
    }
    add(list, "only LF everywhere", "GET / HTTP/1.1\nHost: test\n\n", Refused(0));
    add(list, "LF after the request line", "GET / HTTP/1.1\nHost: test\r\n\r\n", Refused(0));
    add(list, "LF as the last line end", "GET / HTTP/1.1\r\nHost: test\r\n\n", Refused(0));
    add(list, "LF CR as line ends", "GET / HTTP/1.1\n\rHost: test\n\r\n\r", Refused(0));
    add(list, "HTTP/0.9", "GET /\r\n", Refused(0));
    add(list, "an empty line first", "\r\nGET / HTTP/1.1\r\nHost: test\r\n\r\n", Either(1));
    add(
        list,
        "twenty empty lines first",
        format!("{}GET / HTTP/1.1\r\nHost: test\r\n\r\n", "\r\n".repeat(20)),
        Either(1),
    );
    add(list, "a bare LF first", "\nGET / HTTP/1.1\r\nHost: test\r\n\r\n", Refused(0));
    add(list, "HTTP/2 preface", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", Refused(0));
}

fn hosts(list: &mut Vec<Vector>) {
    let values: &[(&[u8], Fate)] = &[
        (b"test", Passes(1)),
        (b"test:8080", Passes(1)),
        (b"127.0.0.1", Passes(1)),
        (b"[::1]:8080", Passes(1)),
        (b"TEST.example", Passes(1)),
        (b"a_b", Either(1)),
        (b"test.", Either(1)),
        (b"test:", Either(1)),
        (b"", Either(1)),
        (b"test:65536", Either(1)),
        (b"a@test", Refused(0)),
        (b"test/x", Refused(0)),
        (b"test?x", Refused(0)),
        (b"test#x", Refused(0)),
        (b"test\\x", Refused(0)),
        (b"te st", Refused(0)),
        (b"te\tst", Refused(0)),
        (b"test, other", Refused(0)),
        (b"test:80:80", Refused(0)),
        (b"test:http", Refused(0)),
        (b"test:-80", Refused(0)),
        (b"test:8 0", Refused(0)),
        (b"[::1", Refused(0)),
        (b"::1", Refused(0)),
        (b"[]", Refused(0)),
        (b"[::1]x", Refused(0)),
        (b"<test>", Refused(0)),
        (b"te\xc3\xa9st", Refused(0)),
        (b"te\x00st", Refused(0)),
        (b"http://test", Refused(0)),
    ];
    for (value, fate) in values {
        let bytes = [&b"GET / HTTP/1.1\r\nHost: "[..], value, &b"\r\n\r\n"[..]].concat();
        add(list, format!("host {:?}", show(value)), bytes, *fate);
    }
    add(list, "no host in HTTP/1.1", "GET / HTTP/1.1\r\n\r\n", Refused(0));
    add(list, "two hosts", "GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", Refused(0));
    add(list, "two equal hosts", "GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n", Refused(0));
    add(list, "two hosts in different case", "GET / HTTP/1.1\r\nHost: a\r\nhost: b\r\n\r\n", Refused(0));
    add(
        list,
        "host with a blank before its colon",
        "GET / HTTP/1.1\r\nHost: a\r\nHost : b\r\n\r\n",
        Refused(0),
    );
    add(list, "host in a folded line", "GET / HTTP/1.1\r\nHost: a\r\n b\r\n\r\n", Refused(0));
    add(list, "folded first line", "GET / HTTP/1.1\r\n Host: a\r\nHost: b\r\n\r\n", Refused(0));
    add(
        list,
        "host named in Connection",
        "GET / HTTP/1.1\r\nHost: a\r\nConnection: host\r\n\r\n",
        Refused(0),
    );
    add(list, "absolute target with another host", "GET http://b/x HTTP/1.1\r\nHost: a\r\n\r\n", Either(1));
    add(list, "absolute target without a host", "GET http://b/x HTTP/1.1\r\n\r\n", Refused(0));
    add(list, "HTTP/1.0 without a host", "GET / HTTP/1.0\r\n\r\n", Either(1));
    add(list, "HTTP/1.0 with two hosts", "GET / HTTP/1.0\r\nHost: a\r\nHost: b\r\n\r\n", Refused(0));
}

fn field_lines(list: &mut Vec<Vector>) {
    let lines: &[(&[u8], Fate)] = &[
        (b"X-A: b", Passes(1)),
        (b"X-A:", Passes(1)),
        (b"X-A: \xe4\xb8\x96", Either(1)),
        (b"X-A: a\tb", Passes(1)),
        (b"X-A:b", Passes(1)),
        (b"!#$%&'*+-.^_`|~09aZ: b", Either(1)),
        (b"X-A", Refused(0)),
        (b": b", Refused(0)),
        (b":", Refused(0)),
        (b" X-A: b", Refused(0)),
        (b"\tX-A: b", Refused(0)),
        (b"X-A : b", Refused(0)),
        (b"X A: b", Refused(0)),
        (b"X-A\x00: b", Refused(0)),
        (b"X-A\x0b: b", Refused(0)),
        (b"X-\xc3\xa9: b", Refused(0)),
        (b"X(A: b", Refused(0)),
        (b"X\"A: b", Refused(0)),
        (b"X/A: b", Refused(0)),
        (b"X@A: b", Refused(0)),
        (b"[X]: b", Refused(0)),
        (b"X;A: b", Refused(0)),
        (b"X-A: b\x00c", Refused(0)),
        (b"X-A: b\x01", Refused(0)),
        (b"X-A: b\x08c", Refused(0)),
        (b"X-A: b\x0bc", Refused(0)),
        (b"X-A: b\x1b[31m", Refused(0)),
        (b"X-A: b\x7f", Refused(0)),
        (b"X-A: b\rc", Refused(0)),
        (b"X-A: b\r", Refused(0)),
        (b"X-A: b\nX-B: c", Refused(0)),
        (b"X-A: b\r\n c", Refused(0)),
        (b"X-A: b\r\n\tc", Refused(0)),
        (b"X-A: b\r\n \r\nX-B: c", Refused(0)),
        (b"\x0c", Refused(0)),
    ];
    for (line, fate) in lines {
        let bytes = [&b"GET /field HTTP/1.1\r\nHost: test\r\n"[..], line, &b"\r\n\r\n"[..]].concat();
        add(list, format!("field line {:?}", show(line)), bytes, *fate);
    }
}

fn state(list: &mut Vec<Vector>) {
    let get = "GET /one HTTP/1.1\r\nHost: test\r\n\r\n";
    let post = "POST /one HTTP/1.1\r\nHost: test\r\nContent-Length: 5\r\n\r\nhello";
    add(list, "two requests at once", format!("{get}{}", get.replace("one", "two")), Passes(2));
    add(list, "body and a request at once", format!("{post}{get}"), Passes(2));
    add(list, "request then garbage", format!("{get}garbage\r\n\r\n"), Refused(1));
    add(list, "request then NULs", [get.as_bytes(), &[0; 64]].concat(), Refused(1));
    add(list, "body then garbage", format!("{post}garbage\r\n\r\n"), Refused(1));
    add(
        list,
        "request then an ambiguous one",
        format!(
            "{get}POST / HTTP/1.1\r\nHost: test\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
        ),
        Refused(1),
    );
    add(list, "body longer than its length", format!("{post}!\r\nX: y\r\n\r\n"), Refused(1));
    add(
        list,
        "body shorter than its length",
        "POST /one HTTP/1.1\r\nHost: test\r\nContent-Length: 50\r\n\r\nhello",
        Either(0),
    );
    add(list, "head without its end", "GET /one HTTP/1.1\r\nHost: test\r\nX-A: b", Either(0));
    add(
        list,
        "chunks without their end",
        "POST / HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
        Either(0),
    );
    add(
        list,
        "refused request then a good one",
        format!("GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n{get}"),
        Refused(0),
    );
    add(
        list,
        "ambiguous body that holds a request",
        format!(
            "POST / HTTP/1.1\r\nHost: test\r\nContent-Length: 6\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n{get}"
        ),
        Refused(0),
    );
    add(
        list,
        "bad chunk then a request",
        format!("POST / HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n{get}"),
        Refused(0),
    );
    add(
        list,
        "close then a request",
        format!("GET /last HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n{get}"),
        Passes(1),
    );
    add(list, "HTTP/1.0 then a request", format!("GET /last HTTP/1.0\r\nHost: test\r\n\r\n{get}"), Passes(1));
    add(list, "HEAD then a request", format!("{}{get}", get.replace("GET", "HEAD")), Passes(2));
    add(list, "HEAD with a body then a request", format!("{}{get}", post.replace("POST", "HEAD")), Either(2));
    add(
        list,
        "upgrade that is not granted, then a request",
        format!(
            "GET /ws HTTP/1.1\r\nHost: test\r\nConnection: upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n{get}"
        ),
        Either(2),
    );
    add(
        list,
        "upgrade to h2c",
        "GET /h2c HTTP/1.1\r\nHost: test\r\nConnection: upgrade, http2-settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\n\r\n",
        Either(1),
    );
    add(
        list,
        "upgrade with a body that holds a request",
        format!(
            "POST /up HTTP/1.1\r\nHost: test\r\nConnection: upgrade\r\nUpgrade: foo\r\nContent-Length: {}\r\n\r\n{get}",
            get.len()
        ),
        Either(1),
    );
    add(
        list,
        "expectation that no server knows",
        post.replace("Content", "Expect: 200-ok\r\nContent"),
        Refused(0),
    );
    add(
        list,
        "expectation without its body",
        "POST /e HTTP/1.1\r\nHost: test\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n",
        Either(0),
    );
    add(
        list,
        "expectation with its body at once",
        post.replace("Content", "Expect: 100-continue\r\nContent"),
        Passes(1),
    );
    add(
        list,
        "expectation without any body, then a request",
        format!("GET /e HTTP/1.1\r\nHost: test\r\nExpect: 100-continue\r\n\r\n{get}"),
        Either(2),
    );
    add(
        list,
        "two expectations",
        post.replace("Content", "Expect: 100-continue\r\nExpect: 100-continue\r\nContent"),
        Either(1),
    );
    add(
        list,
        "hop-by-hop headers",
        "GET /hop HTTP/1.1\r\nHost: test\r\nConnection: close, X-Secret\r\nX-Secret: 1\r\nKeep-Alive: timeout=5\r\nProxy-Connection: keep-alive\r\nTE: trailers\r\n\r\n",
        Passes(1),
    );
    add(
        list,
        "Connection that names nothing",
        "GET /hop HTTP/1.1\r\nHost: test\r\nConnection: ,\r\n\r\n",
        Either(1),
    );
}

fn not_http(list: &mut Vec<Vector>) {
    let hello =
        [&[0x16, 0x03, 0x01, 0x00, 0x30, 0x01, 0x00, 0x00, 0x2c, 0x03, 0x03][..], &[0x5a; 40]].concat();
    add(list, "TLS ClientHello", hello, Refused(0));
    add(list, "SSH banner", "SSH-2.0-OpenSSH_9.2\r\n", Refused(0));
    add(
        list,
        "PROXY v1 header from a stranger",
        "PROXY TCP4 1.2.3.4 5.6.7.8 1 2\r\nGET / HTTP/1.1\r\nHost: test\r\n\r\n",
        Refused(0),
    );
    add(list, "PROXY v2 signature from a stranger", b"\r\n\r\n\x00\r\nQUIT\n\x21\x11\x00\x0c\x01\x02\x03\x04\x05\x06\x07\x08\x00\x01\x00\x02GET / HTTP/1.1\r\nHost: test\r\n\r\n", Refused(0));
    add(list, "NULs", [0; 300], Refused(0));
    add(list, "high bytes", [0xff; 300], Refused(0));
    add(list, "JSON", "{\"jsonrpc\": \"2.0\", \"method\": \"x\"}\r\n\r\n", Refused(0));
    add(list, "SMTP", "EHLO test\r\n", Refused(0));
}
