//! One step through DER (X.690), for the few structures that are looked into and not decoded.

/// A tag, what it holds, and what follows it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Element<'a> {
    pub(super) tag: u8,
    pub(super) content: &'a [u8],
    pub(super) rest: &'a [u8],
}

/// The first element. `None` if that is not DER, or a length or tag that nothing here needs.
pub(super) fn read(input: &[u8]) -> Option<Element<'_>> {
    let (&tag, rest) = input.split_first()?;
    if tag & 0x1f == 0x1f {
        return None;
    }
    let (&first, rest) = rest.split_first()?;
    let (length, rest) = match first {
        0..=0x7f => (usize::from(first), rest),
        0x81..=0x84 => {
            let (bytes, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
            (bytes.iter().fold(0_usize, |length, byte| length << 8 | usize::from(*byte)), rest)
        }
        _ => return None,
    };
    let (content, rest) = rest.split_at_checked(length)?;
    Some(Element { tag, content, rest })
}

/// The first element, if it has this tag.
pub(super) fn expect(input: &[u8], tag: u8) -> Option<Element<'_>> {
    read(input).filter(|element| element.tag == tag)
}

pub(super) const INTEGER: u8 = 0x02;
pub(super) const OCTET_STRING: u8 = 0x04;
pub(super) const OID: u8 = 0x06;
pub(super) const ENUMERATED: u8 = 0x0a;
pub(super) const GENERALIZED_TIME: u8 = 0x18;
pub(super) const SEQUENCE: u8 = 0x30;

/// `[number]`, constructed.
pub(super) const fn context(number: u8) -> u8 {
    0xa0 | number
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_are_read_and_what_is_cut_off_is_not() {
        let element = expect(&[0x30, 3, 2, 1, 5, 9], SEQUENCE).unwrap();
        assert_eq!((element.content, element.rest), (&[2, 1, 5][..], &[9][..]));
        let long = [&[0x04, 0x82, 1, 0][..], &[7; 256]].concat();
        assert_eq!(expect(&long, OCTET_STRING).unwrap().content.len(), 256);
        for bad in
            [&[][..], &[0x30], &[0x30, 2, 1], &[0x30, 0x80, 0, 0], &[0x30, 0x84, 0xff, 0xff, 0xff, 0xff]]
        {
            assert!(read(bad).is_none(), "{bad:?}");
        }
    }
}
