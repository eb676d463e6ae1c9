//! The bytes that name shared memory, in PyTorch's format where that can say it.
//!
//! Byte 0 is the version, byte 1 the kind: `c` for a plain allocation, followed by its handle; `e`
//! for pages, followed by a head (process, page size, count, and from version 3 on the kind of
//! handle) and one handle for each page. Pages of different sizes, which PyTorch does not have, are
//! kind `u`: process, count and kind of handle, then the size and the handle of each. 64 bytes with
//! no head are a plain allocation's handle, as old versions wrote it. All numbers are
//! little-endian, as on every host that has such a device.

use crate::device::{HANDLE_BYTES, SharedPage};
use crate::error::ShareProblem;

/// The version that PyTorch 2.11 writes and reads, which later ones read too.
const VERSION: u8 = 2;
/// The newest version that is read here.
const VERSION_MAX: u8 = 3;
const PLAIN: u8 = b'c';
const PAGES: u8 = b'e';
/// Ours: pages of unequal sizes.
const UNEQUAL_PAGES: u8 = b'u';
const DESCRIPTOR_BYTES: usize = 4;
/// How version 3 names the kinds of handle.
const KIND_DESCRIPTOR: u32 = 1;
const KIND_FABRIC: u32 = 2;

/// What the bytes name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ShareBytes {
    /// A plain allocation.
    Plain([u8; HANDLE_BYTES]),
    /// Pages that lie behind each other, each with its size, and all shared in the same way.
    Pages { pid: u32, pages: Vec<(SharedPage, u64)> },
}

impl ShareBytes {
    pub(super) fn write(&self) -> Vec<u8> {
        match self {
            ShareBytes::Plain(handle) => [&[VERSION, PLAIN], &handle[..]].concat(),
            ShareBytes::Pages { pid, pages } => write_pages(*pid, pages),
        }
    }

    pub(super) fn read(bytes: &[u8]) -> Result<ShareBytes, ShareProblem> {
        if let Ok(handle) = <[u8; HANDLE_BYTES]>::try_from(bytes) {
            return Ok(ShareBytes::Plain(handle));
        }
        let length = ShareProblem::Length(bytes.len());
        let &[version, kind, ref rest @ ..] = bytes else { return Err(length) };
        if version > VERSION_MAX {
            return Err(ShareProblem::Version(version));
        }
        match kind {
            PLAIN => rest.try_into().map(ShareBytes::Plain).map_err(|_| length),
            PAGES => read_pages(version, rest).ok_or(length)?,
            UNEQUAL_PAGES => read_unequal_pages(rest).ok_or(length)?,
            kind => Err(ShareProblem::Kind(kind)),
        }
    }
}

/// Pages behind a head, in PyTorch's format if they have one size.
fn write_pages(pid: u32, pages: &[(SharedPage, u64)]) -> Vec<u8> {
    let handle = |page: &SharedPage| match page {
        SharedPage::Descriptor(number) => number.to_le_bytes().to_vec(),
        SharedPage::Fabric(handle) => handle.to_vec(),
    };
    let (pid, count) = (u64::from(pid), pages.len() as u64);
    let page_bytes = pages.first().map_or(0, |&(_, size_bytes)| size_bytes);
    let are_equal = pages.iter().all(|&(_, size_bytes)| size_bytes == page_bytes);
    let (kind, head) = if are_equal {
        (PAGES, [pid, page_bytes, count])
    } else {
        let is_fabric = matches!(pages[0].0, SharedPage::Fabric(_));
        let handle_kind = if is_fabric { KIND_FABRIC } else { KIND_DESCRIPTOR };
        (UNEQUAL_PAGES, [pid, count, u64::from(handle_kind)])
    };
    let mut bytes = vec![VERSION, kind];
    bytes.extend(head.into_iter().flat_map(u64::to_le_bytes));
    for (page, size_bytes) in pages {
        if !are_equal {
            bytes.extend(size_bytes.to_le_bytes());
        }
        bytes.extend(handle(page));
    }
    bytes
}

/// The next number of some bytes, which go on behind it.
fn next_word(rest: &mut &[u8]) -> Option<u64> {
    let (head, tail) = rest.split_first_chunk::<8>()?;
    *rest = tail;
    Some(u64::from_le_bytes(*head))
}

fn read_handle(handle: &[u8]) -> SharedPage {
    if let Ok(descriptor) = handle.try_into() {
        return SharedPage::Descriptor(i32::from_le_bytes(descriptor));
    }
    let mut fabric = [0; HANDLE_BYTES];
    fabric.copy_from_slice(handle);
    SharedPage::Fabric(fabric)
}

/// Pages of unequal sizes behind a head; nothing if there are too few or too many bytes.
fn read_unequal_pages(mut rest: &[u8]) -> Option<Result<ShareBytes, ShareProblem>> {
    let (pid, count) = (next_word(&mut rest)? as u32, next_word(&mut rest)?);
    let handle_bytes = match next_word(&mut rest)? as u32 {
        KIND_DESCRIPTOR => DESCRIPTOR_BYTES,
        KIND_FABRIC => HANDLE_BYTES,
        other => return Some(Err(ShareProblem::HandleKind(other))),
    };
    if count == 0 || rest.len() as u64 != count.checked_mul(handle_bytes as u64 + 8)? {
        return None;
    }
    let (mut pages, mut whole_bytes) = (Vec::new(), 0_u64);
    for mut page in rest.chunks_exact(handle_bytes + 8) {
        let size_bytes = next_word(&mut page)?;
        let sum_bytes = whole_bytes.checked_add(size_bytes).filter(|_| size_bytes > 0);
        let Some(sum_bytes) = sum_bytes else { return Some(Err(ShareProblem::Size)) };
        whole_bytes = sum_bytes;
        pages.push((read_handle(page), size_bytes));
    }
    Some(Ok(ShareBytes::Pages { pid, pages }))
}

/// The pages behind a head; nothing if there are too few or too many bytes.
fn read_pages(version: u8, mut rest: &[u8]) -> Option<Result<ShareBytes, ShareProblem>> {
    let mut word = || next_word(&mut rest);
    // The process fills half a word; the other half is padding that nobody clears.
    let pid = word()? as u32;
    let (page_bytes, count) = (word()?, word()?);
    let kind = if version >= 3 { Some(word()? as u32) } else { None };
    let handle_bytes = match kind {
        Some(KIND_DESCRIPTOR) => DESCRIPTOR_BYTES,
        Some(KIND_FABRIC) => HANDLE_BYTES,
        Some(other) => return Some(Err(ShareProblem::HandleKind(other))),
        // Version 2 does not say which kind it is, but the length tells.
        None if rest.len() as u64 == count.checked_mul(HANDLE_BYTES as u64)? => HANDLE_BYTES,
        None => DESCRIPTOR_BYTES,
    };
    if count == 0 || page_bytes == 0 || page_bytes.checked_mul(count).is_none() {
        return Some(Err(ShareProblem::Size));
    }
    if rest.len() as u64 != count.checked_mul(handle_bytes as u64)? {
        return None;
    }
    let pages = rest.chunks_exact(handle_bytes).map(|handle| (read_handle(handle), page_bytes));
    Some(Ok(ShareBytes::Pages { pid, pages: pages.collect() }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pages(pages: Vec<SharedPage>) -> ShareBytes {
        let pages = pages.into_iter().map(|page| (page, 2 << 20));
        ShareBytes::Pages { pid: 77, pages: pages.collect() }
    }

    /// Two pages of different sizes.
    fn unequal() -> ShareBytes {
        let pages =
            vec![(SharedPage::Descriptor(5), 2 << 20), (SharedPage::Descriptor(6), 4 << 20)];
        ShareBytes::Pages { pid: 77, pages }
    }

    #[test]
    fn what_was_written_is_read_again() {
        let descriptors = vec![SharedPage::Descriptor(5), SharedPage::Descriptor(6)];
        let fabric = vec![SharedPage::Fabric([9; HANDLE_BYTES])];
        let far =
            [9, 8].map(|byte| (SharedPage::Fabric([byte; HANDLE_BYTES]), u64::from(byte) << 21));
        let far = ShareBytes::Pages { pid: 77, pages: far.to_vec() };
        let equal = [ShareBytes::Plain([7; 64]), pages(descriptors), pages(fabric)];
        for shared in equal.into_iter().chain([unequal(), far]) {
            assert_eq!(ShareBytes::read(&shared.write()), Ok(shared));
        }
    }

    #[test]
    fn the_bytes_are_those_of_pytorch() {
        assert_eq!(ShareBytes::Plain([7; 64]).write()[..3], [2, b'c', 7]);
        let bytes = pages(vec![SharedPage::Descriptor(5)]).write();
        let head = [2, b'e', 77, 0, 0, 0, 0, 0, 0, 0, 0, 0, 32, 0, 0, 0, 0, 0];
        assert_eq!(bytes[..head.len()], head);
        assert_eq!(bytes[head.len()..], [1, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0]);
        assert_eq!(ShareBytes::read(&[3; 64]), Ok(ShareBytes::Plain([3; 64])), "the old form");
    }

    #[test]
    fn version_three_says_what_its_handles_are() {
        let mut bytes = pages(vec![SharedPage::Descriptor(5)]).write();
        bytes[0] = 3;
        bytes.splice(26..26, [1, 0, 0, 0, 0xff, 0xff, 0xff, 0xff]);
        assert_eq!(ShareBytes::read(&bytes), Ok(pages(vec![SharedPage::Descriptor(5)])));
        bytes[26] = 9;
        assert_eq!(ShareBytes::read(&bytes), Err(ShareProblem::HandleKind(9)));
    }

    #[test]
    fn bytes_that_name_nothing_are_errors() {
        let good = pages(vec![SharedPage::Descriptor(5)]).write();
        for whole in [&good, &unequal().write()] {
            for cut in 0..whole.len() {
                assert!(ShareBytes::read(&whole[..cut]).is_err(), "cut to {cut} bytes");
            }
        }
        let mut none = unequal().write();
        none[26..34].fill(0);
        assert_eq!(ShareBytes::read(&none), Err(ShareProblem::Size), "a page of no size");
        none[26..34].fill(0xff);
        assert_eq!(ShareBytes::read(&none), Err(ShareProblem::Size), "and two of too much");
        none[18] = 9;
        assert_eq!(ShareBytes::read(&none), Err(ShareProblem::HandleKind(9)));
        assert_eq!(ShareBytes::read(&[4, b'c']), Err(ShareProblem::Version(4)));
        assert_eq!(ShareBytes::read(&[2, b'x']), Err(ShareProblem::Kind(b'x')));
        assert_eq!(ShareBytes::read(&[2, b'c', 0]), Err(ShareProblem::Length(3)));
        let mut huge = good.clone();
        huge[10..18].copy_from_slice(&u64::MAX.to_le_bytes());
        huge[18..26].copy_from_slice(&u64::MAX.to_le_bytes());
        assert!(ShareBytes::read(&huge).is_err());
        let mut none = good;
        none[18] = 0;
        assert_eq!(ShareBytes::read(&none), Err(ShareProblem::Size));
    }
}
