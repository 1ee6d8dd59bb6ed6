!> Networks that a Fortran program trains on its own arrays, over MPI: docs/fortran.md.
!! array.c has the C half: it reads the options and checks the arrays.
module hvtrain
   use, intrinsic :: iso_c_binding, only: c_char, c_double, c_int, c_null_char, c_null_ptr, c_ptr
   use, intrinsic :: iso_fortran_env, only: error_unit
   use mpi_f08, only: MPI_Comm
   implicit none
   private

   !> A network, on all ranks of a communicator. A copy is the same network; close it once.
   type, public :: hvt_net
      private
      type(c_ptr) :: handle = c_null_ptr
   contains
      generic :: open => open_integer, open_f08
      procedure :: train, infer, set_lr, hash
      procedure :: save => save_net
      procedure :: load => load_net
      procedure :: close => close_net
      procedure, private :: open_integer, open_f08
   end type hvt_net

   interface
      integer(c_int) function c_open(name, options, comm, net) bind(c, name="hvt_fortran_open")
         import :: c_char, c_int, c_ptr
         character(kind=c_char), intent(in) :: name(*), options(*)
         integer(c_int), intent(in), optional :: comm
         type(c_ptr), intent(inout) :: net
      end function c_open
      integer(c_int) function c_train(net, images, targets, epochs, loss) bind(c, name="hvt_fortran_train")
         import :: c_double, c_int, c_ptr
         type(c_ptr), value :: net
         type(*), dimension(..), intent(in) :: images, targets
         integer(c_int), intent(in), optional :: epochs
         real(c_double), intent(out), optional :: loss
      end function c_train
      integer(c_int) function c_infer(net, images, outputs) bind(c, name="hvt_fortran_infer")
         import :: c_int, c_ptr
         type(c_ptr), value :: net
         type(*), dimension(..), intent(in) :: images
         type(*), dimension(..), intent(inout) :: outputs
      end function c_infer
      integer(c_int) function c_file(net, path, write) bind(c, name="hvt_fortran_file")
         import :: c_char, c_int, c_ptr
         type(c_ptr), value :: net
         character(kind=c_char), intent(in) :: path(*)
         integer(c_int), value :: write
      end function c_file
      integer(c_int) function c_set_lr(net, lr) bind(c, name="hvt_fortran_set_lr")
         import :: c_double, c_int, c_ptr
         type(c_ptr), value :: net
         real(c_double), value :: lr
      end function c_set_lr
      integer(c_int) function c_hash(net, text) bind(c, name="hvt_fortran_hash")
         import :: c_char, c_int, c_ptr
         type(c_ptr), value :: net
         character(kind=c_char), intent(out) :: text(16)
      end function c_hash
      subroutine c_close(net) bind(c, name="hvt_fortran_close")
         import :: c_ptr
         type(c_ptr), intent(inout) :: net
      end subroutine c_close
      subroutine c_error(text, length) bind(c, name="hvt_fortran_error")
         import :: c_char, c_int
         integer(c_int), value :: length
         character(kind=c_char), intent(out) :: text(length)
      end subroutine c_error
   end interface

contains

   !> Every procedure ends here. stat is 0 or an error's number. Without stat an error ends the program.
   subroutine finish(status, stat, errmsg)
      integer(c_int), intent(in) :: status
      integer, intent(out), optional :: stat
      character(len=*), intent(inout), optional :: errmsg
      character(kind=c_char, len=1024) :: text

      if (present(stat)) stat = status
      if (status == 0) return
      call c_error(text, len(text, c_int))
      if (present(errmsg)) errmsg = text
      if (present(stat)) return
      write (error_unit, "(2a)") "hvtrain: ", trim(text)
      error stop 1
   end subroutine finish

   !> Opens a network. name: a model of the zoo or a .pt2 file; options: as in docs/fortran.md. Without comm the
   !! ranks are those that a launcher started, or one process. Collective.
   subroutine open_integer(self, name, options, comm, stat, errmsg)
      class(hvt_net), intent(inout) :: self
      character(len=*), intent(in) :: name, options
      integer, intent(in), optional :: comm
      integer, intent(out), optional :: stat
      character(len=*), intent(inout), optional :: errmsg

      call finish(c_open(trim(name)//c_null_char, trim(options)//c_null_char, comm, self%handle), stat, errmsg)
   end subroutine open_integer

   subroutine open_f08(self, name, options, comm, stat, errmsg)
      class(hvt_net), intent(inout) :: self
      character(len=*), intent(in) :: name, options
      type(MPI_Comm), intent(in) :: comm
      integer, intent(out), optional :: stat
      character(len=*), intent(inout), optional :: errmsg

      call self%open_integer(name, options, comm%MPI_VAL, stat, errmsg)
   end subroutine open_f08

   !> Trains for `epochs` passes (1 unless given) over the images of all ranks. targets: labels, integers from 0,
   !! or with loss=mse or mae numbers (outputs, n). loss: mean over all images in the last pass. Collective.
   subroutine train(self, images, targets, epochs, loss, stat, errmsg)
      class(hvt_net), intent(in) :: self
      type(*), dimension(..), intent(in) :: images, targets
      integer, intent(in), optional :: epochs
      real(c_double), intent(out), optional :: loss
      integer, intent(out), optional :: stat
      character(len=*), intent(inout), optional :: errmsg

      call finish(c_train(self%handle, images, targets, epochs, loss), stat, errmsg)
   end subroutine train

   !> Infers. outputs (outputs, n): logits or predicted targets, real32 or real64. A rank may call it alone.
   subroutine infer(self, images, outputs, stat, errmsg)
      class(hvt_net), intent(in) :: self
      type(*), dimension(..), intent(in) :: images
      type(*), dimension(..), intent(inout) :: outputs
      integer, intent(out), optional :: stat
      character(len=*), intent(inout), optional :: errmsg

      call finish(c_infer(self%handle, images, outputs), stat, errmsg)
   end subroutine infer

   !> Writes PATH.safetensors, and the optimizer's state beside it. Collective.
   subroutine save_net(self, path, stat, errmsg)
      class(hvt_net), intent(in) :: self
      character(len=*), intent(in) :: path
      integer, intent(out), optional :: stat
      character(len=*), intent(inout), optional :: errmsg

      call finish(c_file(self%handle, trim(path)//c_null_char, 1_c_int), stat, errmsg)
   end subroutine save_net

   !> Continues to the bit from what save wrote, on any number of ranks. Collective.
   subroutine load_net(self, path, stat, errmsg)
      class(hvt_net), intent(in) :: self
      character(len=*), intent(in) :: path
      integer, intent(out), optional :: stat
      character(len=*), intent(inout), optional :: errmsg

      call finish(c_file(self%handle, trim(path)//c_null_char, 0_c_int), stat, errmsg)
   end subroutine load_net

   !> Sets the learning rate from the next update on, the same on all ranks.
   subroutine set_lr(self, lr, stat, errmsg)
      class(hvt_net), intent(in) :: self
      real(c_double), intent(in) :: lr
      integer, intent(out), optional :: stat
      character(len=*), intent(inout), optional :: errmsg

      call finish(c_set_lr(self%handle, lr), stat, errmsg)
   end subroutine set_lr

   !> A hash of the weights, 16 digits.
   function hash(self) result(text)
      class(hvt_net), intent(in) :: self
      character(kind=c_char, len=16) :: text

      call finish(c_hash(self%handle, text))
   end function hash

   !> Closes a network, before MPI_Finalize. One that is not open is fine. Collective.
   subroutine close_net(self)
      class(hvt_net), intent(inout) :: self

      call c_close(self%handle)
   end subroutine close_net
end module hvtrain
