//! Cookies in the heads of requests (RFC 6265): finds one by its name, and takes it out of a head.

/// Values of one name that are looked at: a client that sends more gets nothing for it.
const MOST_VALUES: usize = 4;

/// Returns the first values of the cookie `name`, in the order of `fields`, which are the values of `Cookie` fields.
pub fn values<'a>(
    fields: impl Iterator<Item = &'a [u8]> + 'a,
    name: &'a str,
) -> impl Iterator<Item = &'a [u8]> + 'a {
    let pairs = fields.flat_map(|field| field.split(|byte| *byte == b';'));
    pairs.filter_map(move |pair| value_of(pair, name)).take(MOST_VALUES)
}

/// Value of a pair with this name. Names are case-sensitive.
fn value_of<'a>(pair: &'a [u8], name: &str) -> Option<&'a [u8]> {
    let value = pair.trim_ascii().strip_prefix(name.as_bytes())?.trim_ascii_start();
    Some(value.strip_prefix(b"=")?.trim_ascii())
}

/// Takes all cookies named `name` out of a complete request head. The other cookies stay as they are; a field that would
/// be empty is left out.
pub fn strip(head: &mut Vec<u8>, name: &str) {
    let mut at = 0;
    while let Some(length) = memchr::memmem::find(&head[at..], b"\r\n") {
        let line = &head[at..at + length];
        let Some(field) = cookies(line).filter(|field| has(field, name)) else {
            at += length + 2;
            continue;
        };
        let rest: Vec<&[u8]> = field
            .split(|byte| *byte == b';')
            .filter(|pair| value_of(pair, name).is_none())
            .map(<[u8]>::trim_ascii)
            .filter(|pair| !pair.is_empty())
            .collect();
        let field = rest.join(&b"; "[..]);
        let start = line.len() - cookies(line).map_or(0, <[u8]>::len);
        if field.is_empty() {
            head.drain(at..at + length + 2);
        } else {
            let end = at + length;
            let after = start + field.len() + 2;
            head.splice(at + start..end, field);
            at += after;
        }
    }
}

fn has(field: &[u8], name: &str) -> bool {
    field.split(|byte| *byte == b';').any(|pair| value_of(pair, name).is_some())
}

/// Value of a line that is a `Cookie` field.
fn cookies(line: &[u8]) -> Option<&[u8]> {
    let colon = memchr::memchr(b':', line)?;
    let (name, value) = line.split_at(colon);
    name.eq_ignore_ascii_case(b"cookie").then(|| value[1..].trim_ascii_start())
}

/// Whether a text can be the name of a cookie (RFC 6265 section 4.1.1: a token).
pub fn is_name(text: &str) -> bool {
    let token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    (1..=64).contains(&text.len()) && text.bytes().all(token)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(fields: &[&str], name: &'static str) -> Vec<String> {
        let values = values(fields.iter().map(|field| field.as_bytes()), name);
        values.map(|value| String::from_utf8_lossy(value).into_owned()).collect()
    }

    #[test]
    fn a_cookie_is_found_by_its_whole_name_in_any_field() {
        assert_eq!(found(&["a=1; s=x; b=2"], "s"), ["x"]);
        assert_eq!(found(&["a=1", "s=x;s=y"], "s"), ["x", "y"]);
        assert_eq!(found(&["ss=1; S=2; s"], "s"), [""; 0]);
        assert_eq!(found(&["s=a=b", "s=", " s = c "], "s"), ["a=b", "", "c"]);
        assert_eq!(found(&[&"s=1;".repeat(1000)], "s").len(), MOST_VALUES);
        assert_eq!(found(&["", ";;;", "=x"], "s"), [""; 0]);
    }

    #[test]
    fn it_is_taken_out_and_the_rest_stays() {
        let head = |fields: &str| format!("GET /?s=1 HTTP/1.1\r\nHost: s=2\r\n{fields}X-Last: s=3\r\n\r\n");
        for (fields, expected) in [
            ("", ""),
            ("Cookie: a=1; s=x; b=2\r\n", "Cookie: a=1; b=2\r\n"),
            ("cookie:s=x\r\n", ""),
            ("Cookie: s=x\r\nCOOKIE: a=1\r\nCookie: b=1; s=1\r\n", "COOKIE: a=1\r\nCookie: b=1\r\n"),
            ("Cookie: a=1;b=2 ;  c\r\n", "Cookie: a=1;b=2 ;  c\r\n"),
            ("Cookie: s=1;;s=2\r\n", ""),
            ("X-Cookie: s=1\r\n", "X-Cookie: s=1\r\n"),
        ] {
            let mut bytes = head(fields).into_bytes();
            strip(&mut bytes, "s");
            assert_eq!(String::from_utf8(bytes).unwrap(), head(expected), "{fields}");
        }
    }

    #[test]
    fn no_bytes_make_it_panic_or_leave_the_cookie_in() {
        let mut random = 7_u64;
        for _ in 0..20_000 {
            let mut head = b"GET / HTTP/1.1\r\n".to_vec();
            for _ in 0..40 {
                random =
                    random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let parts: [&[u8]; 12] = [
                    b"Cookie:",
                    b"s",
                    b"=",
                    b";",
                    b" ",
                    b"\r\n",
                    b"a",
                    b"s=1",
                    b"cookie: ",
                    b"\r",
                    b":",
                    b"\n",
                ];
                head.extend_from_slice(parts[(random >> 33) as usize % parts.len()]);
            }
            head.extend_from_slice(b"\r\n\r\n");
            strip(&mut head, "s");
            let text = String::from_utf8(head).unwrap();
            let lines = text.split("\r\n").map(str::as_bytes).filter_map(cookies);
            assert!(lines.into_iter().all(|field| !has(field, "s")), "{text:?}");
        }
    }

    #[test]
    fn names_are_tokens() {
        assert!(is_name("penstock") && is_name("__Host-s"));
        assert!(!is_name("") && !is_name("a b") && !is_name("a=b") && !is_name(&"a".repeat(65)));
    }
}
