//! The pair of functions that PyTorch's `CUDAPluggableAllocator` looks up in a library.

use larder_core::Addr;

use crate::border::{Status, Token, guard, last_words};
use crate::larder::Larder;

/// Nobody looks at a status here, so the reason goes where a person can read it.
fn tell(status: Status, call: &str) {
    if status != Status::Ok {
        eprintln!("larder: {call}: {}", last_words());
    }
}

#[unsafe(no_mangle)]
extern "C" fn larder_torch_alloc(size: usize, device: i32, stream: Token) -> Token {
    let mut given = Token::NULL;
    let place = &mut given;
    let status = guard(|| {
        *place = Token::new(Larder::process()?.malloc(device, size as u64, stream.stream())?.0);
        Ok(())
    });
    tell(status, "larder_torch_alloc");
    given
}

#[unsafe(no_mangle)]
extern "C" fn larder_torch_free(ptr: Token, _size: usize, _device: i32, _stream: Token) {
    let status = guard(|| {
        let addr = Addr(ptr.number());
        Larder::process()?.at(addr, |allocator| allocator.free(addr))?;
        Ok(())
    });
    tell(status, "larder_torch_free");
}
