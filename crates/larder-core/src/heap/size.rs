//! Sizes: rounding, small or large, what to ask of the device, when to split. Pure functions.

use crate::config::{Config, division_class};
use crate::types::{MIB, PoolKind};

/// The unit of all blocks: every size and address is a multiple of it.
pub const BLOCK_UNIT_BYTES: u64 = 512;
/// The largest request, after rounding, that goes to a small pool.
pub const SMALL_MAX_BYTES: u64 = MIB;
/// The size of a small pool's segments, and of the pages of its expandable ones.
pub const SMALL_SEGMENT_BYTES: u64 = 2 * MIB;
/// From this size on a request gets a segment of its own.
pub const OWN_SEGMENT_MIN_BYTES: u64 = 10 * MIB;
/// Segments of a size of their own are multiples of this.
pub const SEGMENT_UNIT_BYTES: u64 = 2 * MIB;
/// A request of this size is refused before anything else is tried.
pub const REQUEST_LIMIT_BYTES: u64 = 1 << 60;

/// The size of the block that a request gets where no divisions are set.
#[inline]
pub fn round_plainly(size_bytes: u64) -> u64 {
    size_bytes.next_multiple_of(BLOCK_UNIT_BYTES).max(BLOCK_UNIT_BYTES)
}

/// Whether a request is for nothing, or for more than can ever be: the fast path serves neither.
#[inline]
pub(crate) fn is_odd(requested_bytes: u64) -> bool {
    requested_bytes.wrapping_sub(1) >> REQUEST_LIMIT_BYTES.ilog2() != 0
}

/// As [`round_plainly`], with no branch, for a request that is not odd.
#[inline]
pub(crate) fn round_usual(requested_bytes: u64) -> u64 {
    let size_bytes = ((requested_bytes - 1) | (BLOCK_UNIT_BYTES - 1)) + 1;
    debug_assert_eq!(size_bytes, round_plainly(requested_bytes));
    size_bytes
}

/// The size of the block that a request of `size_bytes` gets.
#[inline]
pub fn round(size_bytes: u64, config: &Config) -> u64 {
    if size_bytes < BLOCK_UNIT_BYTES {
        return BLOCK_UNIT_BYTES;
    }
    let divisions = config.roundup_divisions[division_class(size_bytes)];
    // As in PyTorch, so many divisions that the product wraps round are finer than any size.
    if divisions > 1 && size_bytes > BLOCK_UNIT_BYTES.wrapping_mul(divisions) {
        round_to_division(size_bytes, divisions)
    } else {
        round_plainly(size_bytes)
    }
}

/// Rounds up to the next of `divisions` equal steps between two powers of two.
fn round_to_division(size_bytes: u64, divisions: u64) -> u64 {
    if size_bytes.is_power_of_two() {
        return size_bytes;
    }
    let floor = 1 << size_bytes.ilog2();
    let step: u64 = floor >> divisions.ilog2();
    if step == 0 { size_bytes.next_power_of_two() } else { size_bytes.next_multiple_of(step) }
}

/// Whether a request goes to a small pool where sizes are rounded plainly. One of no bytes does
/// not.
#[inline]
pub fn is_small(requested_bytes: u64) -> bool {
    requested_bytes.wrapping_sub(1) < SMALL_MAX_BYTES
}

/// The kind of pool for a rounded size.
#[inline]
pub fn kind(rounded_bytes: u64) -> PoolKind {
    if rounded_bytes <= SMALL_MAX_BYTES { PoolKind::Small } else { PoolKind::Large }
}

/// The size of the segment that a rounded request asks of the device.
pub fn segment_bytes(rounded_bytes: u64, config: &Config) -> u64 {
    if rounded_bytes <= SMALL_MAX_BYTES {
        SMALL_SEGMENT_BYTES
    } else if rounded_bytes < OWN_SEGMENT_MIN_BYTES {
        config.large_segment()
    } else {
        rounded_bytes.next_multiple_of(SEGMENT_UNIT_BYTES)
    }
}

/// The page of the host's memory: what is pinned is a multiple of it.
pub const HOST_PAGE_BYTES: u64 = 4096;

/// The size of the segment that a rounded request asks of the device where segments are exact.
/// Small ones share theirs all the same, and those below 2 MiB share it with one like them: no
/// segment is smaller than a granule of the way from addresses to segments.
pub fn exact_segment_bytes(rounded_bytes: u64) -> u64 {
    if rounded_bytes <= SMALL_MAX_BYTES {
        SMALL_SEGMENT_BYTES
    } else if rounded_bytes < SEGMENT_UNIT_BYTES {
        (2 * rounded_bytes).next_multiple_of(HOST_PAGE_BYTES)
    } else {
        rounded_bytes.next_multiple_of(HOST_PAGE_BYTES)
    }
}

/// A capture's pool grows by this part of what it holds for the stream.
const CAPTURE_GROWTH: u64 = 8;
/// Its first large segments have the usual size: programs count on them, and little is lost by so
/// few.
const USUAL_CAPTURE_SEGMENTS: u64 = 2;

/// The size of the plain segment that a rounded request of a capture's pool asks of the device, if
/// the pool holds so much for the stream already.
pub fn capture_segment_bytes(rounded_bytes: u64, held_bytes: u64, config: &Config) -> u64 {
    let usual_bytes = segment_bytes(rounded_bytes, config);
    if held_bytes < config.large_segment_bytes.saturating_mul(USUAL_CAPTURE_SEGMENTS) {
        return usual_bytes;
    }
    let own_bytes = rounded_bytes.next_multiple_of(SEGMENT_UNIT_BYTES);
    let part_bytes = held_bytes / CAPTURE_GROWTH / SEGMENT_UNIT_BYTES * SEGMENT_UNIT_BYTES;
    own_bytes.max(part_bytes).min(usual_bytes)
}

/// The size of the pages that back an expandable segment of a pool of this kind: always a multiple
/// of what devices map.
pub fn page_bytes(kind: PoolKind, config: &Config) -> u64 {
    match kind {
        PoolKind::Small => SMALL_SEGMENT_BYTES,
        PoolKind::Large => {
            config.page_bytes.unwrap_or(config.large_segment()).next_multiple_of(SEGMENT_UNIT_BYTES)
        }
    }
}

/// How much address space an expandable segment reserves: an eighth more than the device has, so
/// that pages can be taken from its front and put to its end; or less, if the settings say so.
pub fn reserve_bytes(device_total_bytes: u64, page_bytes: u64, wanted_bytes: Option<u64>) -> u64 {
    let most_bytes = device_total_bytes + device_total_bytes / 8;
    let wanted_bytes = wanted_bytes.unwrap_or(most_bytes);
    wanted_bytes.clamp(1, most_bytes).next_multiple_of(page_bytes)
}

/// Whether a block that is `remainder_bytes` larger than the request is cut in two. Pieces of
/// small and of expandable segments stay useful however small; a large segment's piece must be
/// worth a request of the large pool.
#[inline]
pub fn should_split(
    fine: bool,
    rounded_bytes: u64,
    remainder_bytes: u64,
    split_limit_bytes: u64,
) -> bool {
    remainder_bytes >= remainder_min_bytes(fine) && (fine || rounded_bytes < split_limit_bytes)
}

/// Where every remainder is worth keeping, besides small pools.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fineness {
    /// Everywhere: all sizes share their memory.
    Everywhere,
    /// In blocks of expandable segments.
    BySegment,
    /// For requests that would get an expandable segment.
    ByRequest,
}

/// Whether every remainder is worth keeping.
pub fn cuts_finely(kind: PoolKind, by: Fineness, is_expandable: bool, growing: bool) -> bool {
    let is_fine = match by {
        Fineness::Everywhere => true,
        Fineness::BySegment => is_expandable,
        Fineness::ByRequest => growing,
    };
    kind == PoolKind::Small || is_fine
}

/// The smallest remainder for which a block is cut in two, where no split limit is set.
#[inline]
pub fn remainder_min_bytes(fine: bool) -> u64 {
    // With no branch: which it is, is anybody's guess.
    BLOCK_UNIT_BYTES + u64::from(!fine) * SMALL_MAX_BYTES
}

/// What it does to the free pieces of segments that are partly in use, when `size_bytes` of a free
/// block are taken: how many more there are, and how many bytes more. `was_split` says whether the
/// block was such a piece.
#[inline]
pub fn pieces_of_taking(was_split: bool, whole_bytes: u64, size_bytes: u64) -> (i64, i64) {
    let splits = size_bytes < whole_bytes;
    if was_split {
        (-i64::from(!splits), -(size_bytes as i64))
    } else {
        (i64::from(splits), (whole_bytes - size_bytes) as i64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(text: &str) -> Config {
        Config::parse(text).unwrap()
    }

    #[test]
    fn requests_round_to_units_of_512() {
        let config = Config::default();
        assert_eq!([1, 512, 513, 1200].map(|size| round(size, &config)), [512, 512, 1024, 1536]);
    }

    #[test]
    fn divisions_round_to_steps_of_a_power_of_two() {
        let four = config("roundup_power2_divisions:4");
        assert_eq!(round(84 * MIB, &four), 96 * MIB);
        assert_eq!(round(64 * MIB, &four), 64 * MIB);
        assert_eq!(round(2560, &four), 2560);
        // At and below 512 times the divisions a step would be finer than a block.
        assert_eq!(round(2048, &four), 2048);
        assert_eq!(round(1200, &four), 1536);
        assert_eq!(round_to_division(1200, 4), 1280);
        // A product that wraps round to nothing makes no step, and sizes go up to powers of two.
        let most = config("roundup_power2_divisions:36028797018963968");
        assert_eq!([64 * MIB, 84 * MIB].map(|size| round(size, &most)), [64 * MIB, 128 * MIB]);
        let one = config("roundup_power2_divisions:1");
        assert_eq!(round(84 * MIB - 1, &one), 84 * MIB);
    }

    #[test]
    fn segments_fit_their_requests() {
        let config = Config::default();
        let segment = |size| segment_bytes(round(size, &config), &config);
        assert_eq!(segment(1), 2 * MIB);
        assert_eq!(segment(MIB), 2 * MIB);
        assert_eq!(segment(MIB + 1), 20 * MIB);
        assert_eq!(segment(10 * MIB - 512), 20 * MIB);
        assert_eq!(segment(10 * MIB), 10 * MIB);
        assert_eq!(segment(10 * MIB + 512), 12 * MIB);
    }

    #[test]
    fn exact_segments_are_what_is_asked_for_in_whole_pages() {
        let segment = |size| exact_segment_bytes(round_plainly(size));
        assert_eq!([1, MIB].map(segment), [2 * MIB; 2], "small ones share a segment");
        assert_eq!(segment(MIB + 1), 2 * MIB + HOST_PAGE_BYTES, "two of them");
        assert_eq!(segment(2 * MIB - 1), 2 * MIB);
        assert_eq!(segment(442 * MIB), 442 * MIB);
        assert_eq!(segment(442 * MIB + 513), 442 * MIB + HOST_PAGE_BYTES);
    }

    #[test]
    fn a_captures_pool_soon_grows_by_what_is_asked_for_and_by_an_eighth_of_what_it_holds() {
        let config = Config::default();
        let segment = |size_bytes, held| capture_segment_bytes(size_bytes, held * MIB, &config);
        assert_eq!(segment(512, 1000), 2 * MIB);
        assert_eq!(segment(3 * MIB, 0), 20 * MIB, "the first two are as all others");
        assert_eq!(segment(3 * MIB, 38), 20 * MIB);
        assert_eq!(segment(3 * MIB, 47), 4 * MIB);
        assert_eq!(segment(3 * MIB, 48), 6 * MIB);
        assert_eq!(segment(3 * MIB, 1000), 20 * MIB);
        assert_eq!(segment(30 * MIB, 1000), 30 * MIB);
    }

    #[test]
    fn large_segments_are_cut_only_where_the_rest_is_worth_it() {
        let unlimited = u64::MAX;
        assert!(should_split(true, 512, 512, unlimited));
        assert!(!should_split(true, 512, 0, unlimited));
        assert!(!should_split(false, 11 * MIB, MIB, unlimited));
        assert!(should_split(false, 11 * MIB, MIB + 512, unlimited));
        assert!(!should_split(false, 40 * MIB, 2 * MIB, 40 * MIB));
    }

    #[test]
    fn pieces_come_with_a_split_and_go_with_their_last_byte() {
        assert_eq!(pieces_of_taking(false, 2048, 512), (1, 1536));
        assert_eq!(pieces_of_taking(false, 2048, 2048), (0, 0));
        assert_eq!(pieces_of_taking(true, 2048, 512), (0, -512));
        assert_eq!(pieces_of_taking(true, 2048, 2048), (-1, -2048));
    }

    #[test]
    fn expandable_segments_reserve_nine_eighths() {
        assert_eq!(reserve_bytes(80 * MIB, 20 * MIB, None), 100 * MIB);
        let part = |mebibytes| reserve_bytes(80 * MIB, 20 * MIB, Some(mebibytes * MIB));
        assert_eq!([0, 1, 40, 160].map(part), [20 * MIB, 20 * MIB, 40 * MIB, 100 * MIB]);
    }
}
