//! A strict parser of HTTP/1.1 requests, like that of a suspicious backend (RFC 9112 sections 2 to 7, RFC 9110 section
//! 5): input that two parsers could understand differently is a fault. It shares no code with the product.

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Audited {
    pub method: String,
    pub target: String,
    /// Names as received, values without surrounding blanks.
    pub headers: Vec<(String, Vec<u8>)>,
    pub body: Vec<u8>,
    pub trailers: Vec<(String, Vec<u8>)>,
}

impl Audited {
    /// First value of a header as text; `name` in any case.
    pub fn header(&self, name: &str) -> Option<String> {
        self.lines(name).into_iter().next()
    }

    pub fn lines(&self, name: &str) -> Vec<String> {
        let wanted = |(key, _): &&(String, Vec<u8>)| key.eq_ignore_ascii_case(name);
        self.headers
            .iter()
            .filter(wanted)
            .map(|(_, value)| String::from_utf8_lossy(value).into_owned())
            .collect()
    }

    pub fn has(&self, name: &str) -> bool {
        self.header(name).is_some() || self.trailers.iter().any(|(key, _)| key.eq_ignore_ascii_case(name))
    }
}

/// Result of parsing the start of a byte stream.
#[derive(Debug)]
pub enum Reading {
    /// A request, and its length in bytes.
    Request(Box<Audited>, usize),
    /// The strict beginning of a request, or no bytes.
    Incomplete,
    /// Not a request, or a request that parsers could understand differently.
    Fault(String),
}

type Step<T> = Result<Option<T>, String>;

/// Parses one request at the start of `bytes`.
pub fn read(bytes: &[u8]) -> Reading {
    match read_request(bytes) {
        Ok(Some((request, length))) => Reading::Request(Box::new(request), length),
        Ok(None) => Reading::Incomplete,
        Err(fault) => Reading::Fault(fault),
    }
}

fn read_request(bytes: &[u8]) -> Step<(Audited, usize)> {
    let mut at = 0;
    let Some(first) = line(bytes, &mut at)? else { return Ok(None) };
    let parts: Vec<&[u8]> = first.split(|byte| *byte == b' ').collect();
    let [method, target, version] = parts[..] else {
        return Err(format!("request line {}", first.escape_ascii()));
    };
    if !is_token(method) || target.is_empty() || !target.iter().all(|byte| (0x21..=0x7e).contains(byte)) {
        return Err(format!("request line {}", first.escape_ascii()));
    }
    if version != b"HTTP/1.1" {
        return Err(format!("version {}", version.escape_ascii()));
    }
    let Some(headers) = fields(bytes, &mut at)? else { return Ok(None) };
    let named =
        |name: &str| headers.iter().filter(|(key, _)| key.eq_ignore_ascii_case(name)).collect::<Vec<_>>();

    for (name, _) in &headers {
        let mapped = name.replace('_', "-").to_ascii_lowercase();
        if name.contains('_') && ["transfer-encoding", "content-length", "host"].contains(&mapped.as_str()) {
            return Err(format!("{name} reads as {mapped} behind a CGI mapping"));
        }
    }
    let hosts = named("host");
    if hosts.len() != 1 {
        return Err(format!("{} Host lines", hosts.len()));
    }
    if !hosts[0].1.iter().all(|byte| byte.is_ascii_alphanumeric() || b".-_:[]~!$&'()*+,;=%".contains(byte)) {
        return Err(format!("Host {}", hosts[0].1.escape_ascii()));
    }
    let (lengths, codings) = (named("content-length"), named("transfer-encoding"));
    if lengths.len() + codings.len() > 1 {
        return Err(format!(
            "{} Content-Length and {} Transfer-Encoding lines",
            lengths.len(),
            codings.len()
        ));
    }
    let mut request = Audited {
        method: text(method),
        target: text(target),
        headers: headers.clone(),
        body: Vec::new(),
        trailers: Vec::new(),
    };
    if let Some((_, value)) = codings.first() {
        if value.as_slice() != b"chunked" {
            return Err(format!("Transfer-Encoding {}", value.escape_ascii()));
        }
        return chunks(bytes, at, request);
    }
    if let Some((_, value)) = lengths.first() {
        if value.is_empty() || value.len() > 18 || !value.iter().all(u8::is_ascii_digit) {
            return Err(format!("Content-Length {}", value.escape_ascii()));
        }
        let length: usize = text(value).parse().map_err(|_| "Content-Length".to_owned())?;
        if bytes.len() - at < length {
            return Ok(None);
        }
        request.body = bytes[at..at + length].to_vec();
        at += length;
    }
    Ok(Some((request, at)))
}

fn chunks(bytes: &[u8], mut at: usize, mut request: Audited) -> Step<(Audited, usize)> {
    loop {
        let Some(size) = line(bytes, &mut at)? else { return Ok(None) };
        if size.is_empty() || size.len() > 16 || !size.iter().all(u8::is_ascii_hexdigit) {
            return Err(format!("chunk size {}", size.escape_ascii()));
        }
        let size = usize::from_str_radix(&text(size), 16).map_err(|_| "chunk size".to_owned())?;
        if size == 0 {
            break;
        }
        let end = at.checked_add(size).ok_or("chunk size beyond every body")?;
        if bytes.len() < end + 2 {
            if bytes.len() > end && bytes[end] != b'\r' {
                return Err("chunk data without CRLF after it".to_owned());
            }
            return Ok(None);
        }
        if &bytes[end..end + 2] != b"\r\n" {
            return Err("chunk data without CRLF after it".to_owned());
        }
        request.body.extend_from_slice(&bytes[at..end]);
        at = end + 2;
    }
    let Some(trailers) = fields(bytes, &mut at)? else { return Ok(None) };
    for (name, _) in &trailers {
        let mapped = name.replace('_', "-").to_ascii_lowercase();
        if ["transfer-encoding", "content-length", "host", "trailer", "connection"].contains(&mapped.as_str())
        {
            return Err(format!("{name} as a trailer"));
        }
    }
    request.trailers = trailers;
    Ok(Some((request, at)))
}

fn fields(bytes: &[u8], at: &mut usize) -> Step<Vec<(String, Vec<u8>)>> {
    let mut all = Vec::new();
    loop {
        let Some(line) = line(bytes, at)? else { return Ok(None) };
        if line.is_empty() {
            return Ok(Some(all));
        }
        let colon = line
            .iter()
            .position(|byte| *byte == b':')
            .ok_or_else(|| format!("line {}", line.escape_ascii()))?;
        let (name, value) = (&line[..colon], &line[colon + 1..]);
        if !is_token(name) {
            return Err(format!("field name {}", name.escape_ascii()));
        }
        let value = value.trim_ascii();
        if let Some(bad) = value.iter().find(|byte| (**byte < 0x20 && **byte != b'\t') || **byte == 0x7f) {
            return Err(format!("byte {bad:#04x} in the value of {}", name.escape_ascii()));
        }
        all.push((text(name), value.to_vec()));
    }
}

/// Takes a line without its CRLF. A CR or LF at any other place is a fault.
fn line<'a>(bytes: &'a [u8], at: &mut usize) -> Step<&'a [u8]> {
    let rest = &bytes[*at..];
    let Some(stop) = rest.iter().position(|byte| matches!(byte, b'\r' | b'\n' | 0)) else {
        // An unfinished line is no fault while it can become a valid line.
        return Ok(None);
    };
    match (rest[stop], rest.get(stop + 1)) {
        (b'\r', Some(b'\n')) => {
            *at += stop + 2;
            Ok(Some(&rest[..stop]))
        }
        (b'\r', None) => Ok(None),
        (byte, _) => Err(format!("bare {byte:#04x} after {}", rest[..stop].escape_ascii())),
    }
}

fn is_token(bytes: &[u8]) -> bool {
    !bytes.is_empty()
        && bytes.iter().all(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte))
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
