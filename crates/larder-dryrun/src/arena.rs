//! Addresses of the host for those of the simulated cards, with memory behind them that costs
//! nothing until somebody writes there.

use std::ptr;
use std::sync::OnceLock;

use larder_core::types::Addr;
use larder_sim::{DEVICE_STRIDE, PLAIN_BASE, RESERVE_BASE};

const TIB: u64 = 1 << 40;
/// Where the arena begins: Linux puts programs, heaps and libraries above or far below it.
const BASE: u64 = 16 * TIB;
/// How much of the host's addresses each card has, and what part of them plain memory has.
const WINDOW_BYTES: u64 = 8 * TIB;
const PLAIN_BYTES: u64 = 2 * TIB;
/// So many cards fit.
pub(crate) const CARDS_MAX: u64 = 6;

/// Takes the addresses, once.
pub(crate) fn reserve() -> Result<(), String> {
    static DONE: OnceLock<Result<(), String>> = OnceLock::new();
    DONE.get_or_init(|| {
        let flags = libc::MAP_PRIVATE
            | libc::MAP_ANONYMOUS
            | libc::MAP_NORESERVE
            | libc::MAP_FIXED_NOREPLACE;
        let (wish, size) = (BASE as *mut libc::c_void, (CARDS_MAX * WINDOW_BYTES) as usize);
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: the call gives new memory at addresses that nobody has, or fails.
        let got = unsafe { libc::mmap(wish, size, access, flags, -1, 0) };
        if got as u64 != BASE {
            return Err("the host gives no addresses for the card's memory (vm.overcommit_memory \
                        must not be 2)"
                .to_owned());
        }
        // SAFETY: the range is the one that was just mapped.
        unsafe { libc::madvise(got, size, libc::MADV_NOHUGEPAGE) };
        // SAFETY: likewise.
        unsafe { libc::madvise(got, size, libc::MADV_DONTDUMP) };
        Ok(())
    })
    .clone()
}

/// The host's address for one of a simulated card; none if it does not fit.
pub(crate) fn to_host(addr: Addr) -> Option<u64> {
    let (card, within) = (addr.0 / DEVICE_STRIDE, addr.0 % DEVICE_STRIDE);
    let (offset, room) = if within >= PLAIN_BASE {
        (within - PLAIN_BASE, PLAIN_BYTES)
    } else {
        (within - RESERVE_BASE + PLAIN_BYTES, WINDOW_BYTES)
    };
    (offset < room && card < CARDS_MAX).then_some(BASE + card * WINDOW_BYTES + offset)
}

/// The card and its address for one of the host's, if it is one of a card.
pub(crate) fn to_card(host: u64) -> Option<(usize, Addr)> {
    let offset = host.checked_sub(BASE).filter(|&offset| offset < CARDS_MAX * WINDOW_BYTES)?;
    let (card, within) = (offset / WINDOW_BYTES, offset % WINDOW_BYTES);
    let place = if within < PLAIN_BYTES {
        PLAIN_BASE + within
    } else {
        RESERVE_BASE + within - PLAIN_BYTES
    };
    Some((card as usize, Addr(card * DEVICE_STRIDE + place)))
}

/// Whether it is an address of a card.
pub(crate) fn is_on_card(host: u64) -> bool {
    to_card(host).is_some()
}

/// Nobody wants what is in this part of the arena any more.
pub(crate) fn discard(host: u64, size_bytes: u64) {
    if is_on_card(host) && is_on_card(host + size_bytes - 1) {
        // SAFETY: the range lies in the arena, whose bytes nobody here borrows across a call.
        unsafe {
            libc::madvise(host as *mut libc::c_void, size_bytes as usize, libc::MADV_DONTNEED)
        };
    }
}

/// Copies bytes of the host or of the arena.
pub(crate) fn copy(to: u64, from: u64, size_bytes: usize) {
    // SAFETY: both are ranges of the caller's or of the arena, which is mapped whole; CUDA's
    // interface asks of its caller that they are valid for so many bytes.
    unsafe { ptr::copy(from as *const u8, to as *mut u8, size_bytes) };
}

/// Fills bytes of the host or of the arena.
pub(crate) fn fill(to: u64, value: u8, size_bytes: usize) {
    // SAFETY: as for `copy`.
    unsafe { ptr::write_bytes(to as *mut u8, value, size_bytes) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_go_there_and_back() {
        for card in [0, 1, CARDS_MAX - 1] {
            for within in [PLAIN_BASE, PLAIN_BASE + (5 << 30), RESERVE_BASE, RESERVE_BASE + TIB] {
                let addr = Addr(card * DEVICE_STRIDE + within);
                let host = to_host(addr).unwrap();
                assert_eq!(to_card(host), Some((card as usize, addr)));
            }
        }
        assert_eq!(to_host(Addr(PLAIN_BASE + PLAIN_BYTES)), None, "it is full");
        assert!(!is_on_card(BASE - 1));
        assert!(!is_on_card(0x7fff_0000_0000));
    }

    #[test]
    fn memory_is_there_and_is_zero_again_when_it_was_discarded() {
        reserve().unwrap();
        let host = to_host(Addr(PLAIN_BASE + (1 << 36))).unwrap();
        let (mut there, value) = (0_u32, 77_u32);
        copy(host, &raw const value as u64, 4);
        copy(&raw mut there as u64, host, 4);
        assert_eq!(there, 77);
        discard(host, 1 << 20);
        copy(&raw mut there as u64, host, 4);
        assert_eq!(there, 0);
    }
}
