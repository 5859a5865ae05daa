//! Answers that a route gives by itself.

use crate::http1::reason::reason_phrase;

/// Largest body of such an answer in bytes.
pub const LARGEST_BODY: usize = 64 * 1024;

/// What a route answers, without a backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Respond {
    status: RespondStatus,
    content_type: ContentType,
    body: Box<str>,
}

impl Respond {
    pub fn new(
        status: RespondStatus,
        content_type: ContentType,
        body: Box<str>,
    ) -> Result<Self, RespondBodyError> {
        match body.len() {
            0 => {}
            _ if matches!(status.0, 204 | 205) => return Err(RespondBodyError::NotAllowed(status.0)),
            LARGEST_BODY.. if body.len() > LARGEST_BODY => {
                return Err(RespondBodyError::TooLarge(body.len()));
            }
            _ => {}
        }
        Ok(Self { status, content_type, body })
    }

    pub fn status(&self) -> u16 {
        self.status.0
    }

    pub fn content_type(&self) -> &str {
        &self.content_type.0
    }

    pub fn body(&self) -> &str {
        &self.body
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RespondBodyError {
    #[error("a response with status {0} has no body")]
    NotAllowed(u16),
    #[error("a body has at most 64KiB, and this one has {0} bytes")]
    TooLarge(usize),
}

/// A registered status of a final response that needs nothing which a route does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RespondStatus(u16);

impl TryFrom<u16> for RespondStatus {
    type Error = RespondStatusError;

    fn try_from(code: u16) -> Result<Self, Self::Error> {
        match code {
            301 | 302 | 303 | 307 | 308 => Err(RespondStatusError::Redirect(code)),
            // They depend on what the client has, or must have a field for which there is no key (RFC 9110 section 15).
            206 | 304 | 401 | 407 | 416 | 426 => Err(RespondStatusError::NeedsMore(code)),
            200..=599 if reason_phrase(code) != "Error" => Ok(Self(code)),
            _ => Err(RespondStatusError::Unknown(code)),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RespondStatusError {
    #[error("{0} is a redirect")]
    Redirect(u16),
    #[error(
        "a route cannot give status {0} by itself: it depends on the client, or needs a field of its own"
    )]
    NeedsMore(u16),
    #[error("{0} is no status of a response that is registered")]
    Unknown(u16),
}

/// Value of Content-Type (RFC 9110 section 8.3).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContentType(Box<str>);

impl std::str::FromStr for ContentType {
    type Err = ContentTypeError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let token = |part: &str| {
            let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
            !part.is_empty() && part.bytes().all(is_token)
        };
        let media = text.split(';').next().unwrap_or_default().trim_end();
        let is_media = media.split_once('/').is_some_and(|(kind, sub)| token(kind) && token(sub));
        let is_visible = text.bytes().all(|byte| (b' '..=b'~').contains(&byte));
        if is_media && is_visible { Ok(Self(text.into())) } else { Err(ContentTypeError) }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a media type is expected, as in `text/html; charset=utf-8`")]
pub struct ContentTypeError;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_are_registered_ones_that_need_nothing_else() {
        for good in [200, 201, 204, 403, 404, 405, 410, 418 + 3, 451, 500, 503, 511] {
            assert_eq!(RespondStatus::try_from(good).map(|status| status.0), Ok(good));
        }
        assert_eq!(RespondStatus::try_from(308), Err(RespondStatusError::Redirect(308)));
        for other in [206, 304, 401, 407] {
            assert_eq!(RespondStatus::try_from(other), Err(RespondStatusError::NeedsMore(other)));
        }
        for unknown in [0, 100, 199, 209, 306, 418, 430, 499, 509, 599, 600] {
            assert_eq!(RespondStatus::try_from(unknown), Err(RespondStatusError::Unknown(unknown)));
        }
    }

    #[test]
    fn a_body_has_its_limit_and_some_statuses_have_none() {
        let kind: ContentType = "text/plain".parse().unwrap();
        let of = |status, length| {
            let status = RespondStatus::try_from(status).unwrap();
            Respond::new(status, kind.clone(), "x".repeat(length).into()).map(|made| made.body().len())
        };
        assert_eq!((of(200, LARGEST_BODY), of(204, 0)), (Ok(LARGEST_BODY), Ok(0)));
        assert_eq!(of(200, LARGEST_BODY + 1), Err(RespondBodyError::TooLarge(LARGEST_BODY + 1)));
        assert_eq!(
            (of(204, 1), of(205, 1)),
            (Err(RespondBodyError::NotAllowed(204)), Err(RespondBodyError::NotAllowed(205)))
        );
    }

    #[test]
    fn a_content_type_cannot_become_another_field() {
        for good in ["text/html", "text/html; charset=utf-8", "application/problem+json ;a=\"b c\""] {
            assert!(good.parse::<ContentType>().is_ok(), "{good}");
        }
        for bad in [
            "",
            "text",
            "text/",
            "/html",
            "te xt/html",
            "text/html\r\nX: y",
            "text/html; é",
            "html;text/html",
        ] {
            assert!(bad.parse::<ContentType>().is_err(), "{bad}");
        }
    }
}
