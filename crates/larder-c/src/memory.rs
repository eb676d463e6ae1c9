//! Memory: taking and giving back, what a block is, what the device has.

use larder_core::{Addr, Error, PoolId};

use crate::border::{Held, Out, PoolName, Status, Text, Token, guard};
use crate::larder::Larder;

/// `larder_block_info`
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct BlockInfo {
    pub(crate) device: i32,
    pub(crate) size: usize,
    pub(crate) stream: Token,
}

#[unsafe(no_mangle)]
extern "C" fn larder_malloc(
    larder: Held<Larder>,
    device: i32,
    size: usize,
    stream: Token,
    out: Out<Token>,
) -> Status {
    guard(|| {
        let (larder, out) = (larder.get("larder")?, out.wanted("out")?);
        let addr = larder.malloc(device, size as u64, stream.stream())?;
        out.put(Token::new(addr.0));
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn larder_malloc_at(
    larder: Held<Larder>,
    device: i32,
    size: usize,
    stream: Token,
    ptr: Token,
    out: Out<Token>,
) -> Status {
    guard(|| {
        let (larder, out) = (larder.get("larder")?, out.wanted("out")?);
        let place = Addr(ptr.number());
        let addr = larder.malloc_at(device, size as u64, stream.stream(), place)?;
        out.put(Token::new(addr.0));
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn larder_free(larder: Held<Larder>, ptr: Token) -> Status {
    guard(|| {
        let larder = larder.get("larder")?;
        let addr = Addr(ptr.number());
        larder.at(addr, |allocator| allocator.free(addr))?;
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn larder_record_stream(larder: Held<Larder>, ptr: Token, stream: Token) -> Status {
    guard(|| {
        let larder = larder.get("larder")?;
        let addr = Addr(ptr.number());
        larder.at(addr, |allocator| allocator.record_stream(addr, stream.stream()))?;
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn larder_forget_stream(larder: Held<Larder>, device: i32, stream: Token) -> Status {
    guard(|| Ok(larder.get("larder")?.device(device)?.forget_stream(stream.stream())?))
}

#[unsafe(no_mangle)]
extern "C" fn larder_stream_is_gone(larder: Held<Larder>, device: i32, stream: Token) -> Status {
    guard(|| Ok(larder.get("larder")?.device(device)?.stream_is_gone(stream.stream())?))
}

#[unsafe(no_mangle)]
extern "C" fn larder_set_stream_class(
    larder: Held<Larder>,
    device: i32,
    stream: Token,
    name: Text,
) -> Status {
    guard(|| {
        let allocator = larder.get("larder")?.device(device)?;
        allocator.set_stream_class(stream.stream(), name.needed("name")?);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn larder_block_of(larder: Held<Larder>, ptr: Token, out: Out<BlockInfo>) -> Status {
    guard(|| {
        let (larder, out) = (larder.get("larder")?, out.wanted("out")?);
        let addr = Addr(ptr.number());
        let (device, (size, stream)) = larder.at(addr, |allocator| allocator.block_at(addr))?;
        out.put(BlockInfo { device, size: size as usize, stream: Token::new(stream.0) });
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn larder_base_allocation(
    larder: Held<Larder>,
    ptr: Token,
    base: Out<Token>,
    size: Out<usize>,
) -> Status {
    guard(|| {
        let larder = larder.get("larder")?;
        let addr = Addr(ptr.number());
        let (_, span) = larder.at(addr, |allocator| allocator.base_allocation(addr))?;
        base.put_if_wanted(Token::new(span.addr.0));
        size.put_if_wanted(span.size_bytes as usize);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn larder_empty_cache(larder: Held<Larder>, pool: PoolName) -> Status {
    guard(|| {
        let larder = larder.get("larder")?;
        let pool = PoolId::from(pool);
        let empty = |allocator: &larder_core::Allocator| match pool {
            PoolId::NONE => allocator.empty_cache(),
            pool => allocator.empty_pool(pool),
        };
        // Every device is emptied; the first error is the one that is told.
        let results: Vec<_> = larder.allocators().iter().map(empty).collect();
        Ok(results.into_iter().collect::<Result<(), Error>>()?)
    })
}

#[unsafe(no_mangle)]
extern "C" fn larder_poll(larder: Held<Larder>) -> Status {
    guard(|| {
        let polled: Vec<_> =
            larder.get("larder")?.allocators().iter().map(larder_core::Allocator::poll).collect();
        Ok(polled.into_iter().collect::<Result<(), Error>>()?)
    })
}

#[unsafe(no_mangle)]
extern "C" fn larder_release_unused(
    larder: Held<Larder>,
    device: i32,
    age_ns: u64,
    spared: usize,
    released: Out<u64>,
) -> Status {
    guard(|| {
        let allocator = larder.get("larder")?.device(device)?;
        let released_bytes = allocator.release_unused(age_ns, spared as u64)?;
        released.put_if_wanted(released_bytes);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn larder_release_above(
    larder: Held<Larder>,
    device: i32,
    size: usize,
    released: Out<u64>,
) -> Status {
    guard(|| {
        let allocator = larder.get("larder")?.device(device)?;
        let released_bytes = allocator.release_above(size as u64)?;
        released.put_if_wanted(released_bytes);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn larder_grow_ahead(
    larder: Held<Larder>,
    device: i32,
    size: usize,
    stream: Token,
    got: Out<bool>,
) -> Status {
    guard(|| {
        let allocator = larder.get("larder")?.device(device)?;
        let has_grown = allocator.grow_ahead(size as u64, stream.stream())?;
        got.put_if_wanted(has_grown);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn larder_memory_info(
    larder: Held<Larder>,
    device: i32,
    free_bytes: Out<u64>,
    total_bytes: Out<u64>,
) -> Status {
    guard(|| {
        let info = larder.get("larder")?.device(device)?.memory_info()?;
        free_bytes.put_if_wanted(info.free_bytes);
        total_bytes.put_if_wanted(info.total_bytes);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn larder_largest_free_block(
    larder: Held<Larder>,
    device: i32,
    out: Out<u64>,
) -> Status {
    guard(|| {
        let out = out.wanted("out")?;
        out.put(larder.get("larder")?.device(device)?.largest_free_bytes());
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn larder_set_memory_fraction(
    larder: Held<Larder>,
    device: i32,
    fraction: f64,
) -> Status {
    guard(|| Ok(larder.get("larder")?.device(device)?.set_memory_fraction(fraction)?))
}

#[unsafe(no_mangle)]
extern "C" fn larder_memory_fraction(larder: Held<Larder>, device: i32, out: Out<f64>) -> Status {
    guard(|| {
        let out = out.wanted("out")?;
        out.put(larder.get("larder")?.device(device)?.memory_fraction());
        Ok(())
    })
}
