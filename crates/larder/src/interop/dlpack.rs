//! DLPack: a buffer as the tensor that Python's array libraries take without a copy.

use std::ffi::c_void;
use std::ptr::{self, NonNull};

use larder_core::device::Device;

use crate::buffer::Buffer;
use crate::error::Error;

/// What kind of number an element is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// A signed integer.
    Int = 0,
    /// An unsigned integer.
    Unsigned = 1,
    /// A floating-point number.
    Float = 2,
}

/// Element types that DLPack can name.
pub trait Element {
    /// What kind of number it is.
    const KIND: Kind;
}

macro_rules! elements {
    ($($kind:ident: $($type:ty),*;)*) => { $($(
        impl Element for $type {
            const KIND: Kind = Kind::$kind;
        }
    )*)* };
}

elements! {
    Int: i8, i16, i32, i64;
    Unsigned: u8, u16, u32, u64;
    Float: f32, f64;
}

/// `DLDevice`: where a tensor is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct DlDevice {
    /// 2 is CUDA, 12 a device that is known to an extension only: the simulated GPU.
    pub device_type: i32,
    /// Which of them.
    pub device_id: i32,
}

/// `DLDataType`: what an element is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct DlDataType {
    /// A [`Kind`] as a number.
    pub code: u8,
    /// How many bits it has.
    pub bits: u8,
    /// How many of them make one element.
    pub lanes: u16,
}

/// `DLTensor`: a view of memory.
#[derive(Debug)]
#[repr(C)]
pub struct DlTensor {
    /// The first byte.
    pub data: *mut c_void,
    /// Where it is.
    pub device: DlDevice,
    /// How many dimensions there are.
    pub ndim: i32,
    /// What an element is.
    pub dtype: DlDataType,
    /// How many elements in each dimension.
    pub shape: *mut i64,
    /// How many elements from one to the next in each dimension; null if there are no gaps.
    pub strides: *mut i64,
    /// Where the first element is from the first byte on.
    pub byte_offset: u64,
}

/// `DLManagedTensor`: a tensor, and how to give it up.
#[derive(Debug)]
#[repr(C)]
pub struct DlManagedTensor {
    /// The tensor.
    pub dl_tensor: DlTensor,
    /// What belongs to whoever made it.
    pub manager_ctx: *mut c_void,
    /// Gives the tensor up; to be called once.
    pub deleter: Option<unsafe extern "C" fn(*mut DlManagedTensor)>,
}

/// `kDLCUDA`.
#[cfg(feature = "cuda")]
const CUDA: i32 = 2;
/// `kDLExtDev`.
const EXTENSION: i32 = 12;

/// What keeps an exported tensor alive.
struct Export<T> {
    tensor: DlManagedTensor,
    shape: Vec<i64>,
    /// Dropped last of all, in the order of its stream.
    _buffer: Buffer<T>,
}

/// A tensor on its way to another library. Dropping it frees the buffer, unless
/// [`Dlpack::into_raw`] gave it away.
#[derive(Debug)]
pub struct Dlpack(NonNull<DlManagedTensor>);

// SAFETY: the tensor behind it is owned, and a buffer may be freed from any thread.
unsafe impl Send for Dlpack {}

impl Dlpack {
    /// The tensor as the other library sees it.
    pub fn tensor(&self) -> &DlTensor {
        // SAFETY: it lives as long as this value, which nobody else changes.
        unsafe { &self.0.as_ref().dl_tensor }
    }

    /// Gives the tensor away: whoever takes it calls its deleter once.
    pub fn into_raw(self) -> NonNull<DlManagedTensor> {
        let raw = self.0;
        std::mem::forget(self);
        raw
    }
}

impl Drop for Dlpack {
    fn drop(&mut self) {
        // SAFETY: it was not given away, so this is the one call of its deleter.
        unsafe {
            if let Some(deleter) = self.0.as_ref().deleter {
                deleter(self.0.as_ptr());
            }
        }
    }
}

impl<T: Element> Buffer<T> {
    /// The buffer as a tensor of this shape, whose elements lie behind each other, the last
    /// dimension fastest. The work that fills it must be done, or ordered before its use, by then.
    ///
    /// ```
    /// # use larder::Allocator;
    /// let allocator = Allocator::simulated(0)?;
    /// let buffer = allocator.alloc::<f32>(6, allocator.default_stream())?;
    /// let tensor = buffer.into_dlpack(&[2, 3])?;
    /// assert_eq!((tensor.tensor().ndim, tensor.tensor().dtype.bits), (2, 32));
    /// # Ok::<(), larder::Error>(())
    /// ```
    pub fn into_dlpack(self, shape: &[u32]) -> Result<Dlpack, Error> {
        let too_large = Error::ShapeTooLarge { dimensions: shape.len() };
        let shape_len = len_of(shape).ok_or(too_large.clone())?;
        let ndim = i32::try_from(shape.len()).map_err(|_| too_large)?;
        let element_bytes = size_of::<T>();
        let bits = u8::try_from(8 * element_bytes);
        let bits = bits.map_err(|_| Error::ElementTooLarge { element_bytes })?;
        if shape_len != self.len() as u64 {
            return Err(Error::Shape { shape_len, len: self.len() });
        }
        let allocator = self.block().allocator();
        let device = (EXTENSION, 0);
        #[cfg(feature = "sim")]
        let device = match allocator.simulated_device() {
            Some(simulated) => (EXTENSION, simulated.properties().index.0),
            None => device,
        };
        #[cfg(feature = "cuda")]
        let device = match allocator.cuda_device() {
            Some(cuda) => (CUDA, cuda.properties().index.0),
            None => device,
        };
        let dl_tensor = DlTensor {
            data: self.addr() as *mut c_void,
            device: DlDevice { device_type: device.0, device_id: device.1 as i32 },
            ndim,
            dtype: DlDataType { code: T::KIND as u8, bits, lanes: 1 },
            shape: ptr::null_mut(),
            strides: ptr::null_mut(),
            byte_offset: 0,
        };
        let tensor =
            DlManagedTensor { dl_tensor, manager_ctx: ptr::null_mut(), deleter: Some(delete::<T>) };
        let shape = shape.iter().map(|&length| i64::from(length)).collect();
        let mut export = Box::new(Export { tensor, shape, _buffer: self });
        export.tensor.dl_tensor.shape = export.shape.as_mut_ptr();
        let export = Box::into_raw(export);
        // SAFETY: the box was just made; from here on it is reached by these pointers only.
        let tensor = unsafe {
            (*export).tensor.manager_ctx = export.cast::<c_void>();
            &raw mut (*export).tensor
        };
        Ok(Dlpack(NonNull::new(tensor).expect("a box is somewhere")))
    }
}

/// How many elements a shape has; none if they cannot be counted.
fn len_of(shape: &[u32]) -> Option<u64> {
    if shape.contains(&0) {
        return Some(0);
    }
    shape.iter().try_fold(1_u64, |len, &length| len.checked_mul(u64::from(length)))
}

/// Gives an exported tensor up.
unsafe extern "C" fn delete<T>(tensor: *mut DlManagedTensor) {
    // SAFETY: whoever has the tensor calls this once, and the context is the box that `into_dlpack`
    // made for a buffer of this type.
    unsafe { drop(Box::from_raw((*tensor).manager_ctx.cast::<Export<T>>())) }
}

#[cfg(all(test, feature = "sim"))]
mod tests {
    use super::*;
    use crate::Allocator;

    #[test]
    fn the_layout_is_that_of_the_header() {
        assert_eq!((size_of::<DlDevice>(), size_of::<DlDataType>()), (8, 4));
        assert_eq!((size_of::<DlTensor>(), size_of::<DlManagedTensor>()), (48, 64));
        assert_eq!(std::mem::offset_of!(DlTensor, ndim), 16);
        assert_eq!(std::mem::offset_of!(DlTensor, dtype), 20);
        assert_eq!(std::mem::offset_of!(DlTensor, shape), 24);
        assert_eq!(std::mem::offset_of!(DlTensor, byte_offset), 40);
    }

    #[test]
    fn the_buffer_lives_until_the_tensor_is_given_up() {
        let allocator = Allocator::simulated(0).unwrap();
        let live = || allocator.stats().allocation.all.current;
        let buffer = || allocator.alloc::<i16>(12, allocator.default_stream()).unwrap();

        let tensor = buffer().into_dlpack(&[3, 4]).unwrap();
        let addr = tensor.tensor().data as u64;
        assert_eq!(tensor.tensor().dtype, DlDataType { code: 0, bits: 16, lanes: 1 });
        assert_eq!(tensor.tensor().device, DlDevice { device_type: EXTENSION, device_id: 0 });
        assert_eq!(live(), 1);
        drop(tensor);
        assert_eq!(live(), 0);

        let raw = buffer().into_dlpack(&[12]).unwrap().into_raw();
        assert_eq!(live(), 1);
        // SAFETY: the tensor was given away to this test, which gives it up once.
        unsafe {
            assert_eq!(*raw.as_ref().dl_tensor.shape, 12);
            assert_eq!(raw.as_ref().dl_tensor.data as u64, addr, "the same block again");
            raw.as_ref().deleter.unwrap()(raw.as_ptr());
        }
        assert_eq!(live(), 0);
    }

    #[test]
    fn a_shape_whose_elements_cannot_be_counted_is_an_error() {
        let allocator = Allocator::simulated(0).unwrap();
        let empty = || allocator.alloc::<u8>(0, allocator.default_stream()).unwrap();
        // The product of these is 2 to the 64th, which is 0 where nobody looks.
        let error = empty().into_dlpack(&[1 << 31, 1 << 31, 4]).unwrap_err();
        assert_eq!(error, Error::ShapeTooLarge { dimensions: 3 });
        assert!(error.to_string().contains("more elements than can be counted"), "{error}");
        let shape = [u32::MAX, u32::MAX, u32::MAX, 0];
        assert_eq!(empty().into_dlpack(&shape).unwrap().tensor().ndim, 4, "there are none");
        assert_eq!(empty().into_dlpack(&[]).unwrap_err(), Error::Shape { shape_len: 1, len: 0 });
    }

    impl Element for [f64; 4] {
        const KIND: Kind = Kind::Float;
    }

    #[test]
    fn an_element_that_dlpack_cannot_name_is_an_error() {
        let allocator = Allocator::simulated(0).unwrap();
        let buffer = allocator.alloc::<[f64; 4]>(3, allocator.default_stream()).unwrap();
        let error = buffer.into_dlpack(&[3]).unwrap_err();
        assert_eq!(error, Error::ElementTooLarge { element_bytes: 32 });
    }

    #[test]
    fn a_shape_of_other_length_is_an_error() {
        let allocator = Allocator::simulated(0).unwrap();
        let buffer = allocator.alloc::<u8>(12, allocator.default_stream()).unwrap();
        let error = buffer.into_dlpack(&[5, 2]).unwrap_err();
        assert_eq!(error, Error::Shape { shape_len: 10, len: 12 });
        assert_eq!(allocator.stats().allocation.all.current, 0, "the buffer was freed");
    }
}
