! Module hvtrain: arrays of any rank and both kinds of real give the same bits, errors reach every rank as
! strings, and what was saved continues. With the argument "stop": an error without stat ends the program.
program test_fortran
   use, intrinsic :: iso_fortran_env, only: int64, real32, real64
   use hvtrain
   use mpi_f08
   implicit none
   integer, parameter :: w = 4, h = 3, c = 2, n = 6, outputs = 3
   character(len=*), parameter :: shape_of_x = "width=4 height=3 channels=2 outputs=3 lr=1d-1 shard=2 seed=7 "
   real(real64) :: x(w, h, c, n), y(outputs, n), got(outputs, n), again(outputs, n)
   real(real32) :: single(outputs, n)
   integer :: rank, ranks, i, failed = 0, stat
   character(len=200) :: message
   character(len=16) :: first
   type(hvt_net) :: net

   call MPI_Init()
   call MPI_Comm_rank(MPI_COMM_WORLD, rank)
   call MPI_Comm_size(MPI_COMM_WORLD, ranks)
   x = reshape([(mod(i*37 + rank, 101)/64.0_real64 - 0.75_real64, i=1, size(x))], shape(x))
   y = reshape([(mod(i, 5)/4.0_real64, i=1, size(y))], shape(y))
   call get_command_argument(1, message)
   if (message == "stop") call net%open("mlp", shape_of_x//"colour=red", MPI_COMM_WORLD)
   call arrays_of_any_rank_and_kind_give_the_same_bits()
   call what_was_saved_continues()
   call labels_may_be_of_any_integer_kind()
   call errors_are_strings_on_every_rank()
   call nets_that_were_closed_hold_nothing()
   call MPI_Allreduce(MPI_IN_PLACE, failed, 1, MPI_INTEGER, MPI_SUM, MPI_COMM_WORLD)
   call MPI_Finalize()
   if (failed /= 0) error stop 1

contains

   subroutine check(holds, what)
      logical, intent(in) :: holds
      character(len=*), intent(in) :: what

      if (holds) return
      failed = failed + 1
      write (*, "(a, i0, 2a)") "FAIL rank ", rank, ": ", trim(what)
   end subroutine check

   subroutine fresh(more)
      character(len=*), intent(in) :: more

      call net%close()
      call net%open("mlp", shape_of_x//more, MPI_COMM_WORLD)
   end subroutine fresh

   subroutine same(what)
      character(len=*), intent(in) :: what

      if (what == "rank 4") first = net%hash()
      call check(net%hash() == first, what//": weights "//net%hash()//", expected "//first)
   end subroutine same

   subroutine arrays_of_any_rank_and_kind_give_the_same_bits()
      real(real64), dimension(c, w, h, n) :: last
      real(real64) :: loss

      call fresh("loss=mse")
      call net%train(x, y, epochs=2, loss=loss)
      call check(loss > 0, "a loss above 0")
      call same("rank 4")
      call net%infer(x, got)
      call net%infer(x, single)
      call check(all(single == real(got, real32)) .and. any(got /= 0), "outputs of both kinds")
      call fresh("loss=mse")
      call net%train(reshape(real(x, real32), [size(x)]), real(y, real32), 2)
      call same("real32 of rank 1")
      call fresh("loss=mse,optimizer=sgd")
      call net%train(reshape(x, [w*h*c, n]), reshape(y, [size(y)]), 2)
      call same("rank 2")
      call net%close()
      call net%open("mlp", shape_of_x//"loss=mse", MPI_COMM_WORLD%MPI_VAL)
      call net%train(reshape(x, [w, h*c, n]), y, 2)
      call same("rank 3, and a communicator as an integer")
      call fresh("loss=mse")
      call net%train(reshape(real(x, real32), [w, h, c, 1, n]), y, 2)
      call same("real32 of rank 5")
      last = reshape(x, shape(last), order=[2, 3, 1, 4])
      call fresh("loss=mse layout=cwhn")
      call net%train(last, y, 2)
      call same("channels first")
   end subroutine arrays_of_any_rank_and_kind_give_the_same_bits

   subroutine what_was_saved_continues()
      character(len=16) :: path

      write (path, "(a, i0)") "fortran_net", ranks
      call fresh("loss=mse optimizer=adamw weight_decay=0.01")
      call net%train(x, y)
      call net%save(path)
      call net%train(x, y)
      call net%infer(x, got)
      call fresh("loss=mse optimizer=adamw weight_decay=0.01")
      call net%load(path)
      call net%train(x, y)
      if (rank == 0) call execute_command_line("rm "//trim(path)//"[-.]*")
      if (rank == 0) call net%infer(x, again) ! alone
      call check(rank > 0 .or. all(again == got), "what was loaded continues to the bit")
      call net%set_lr(0.2d0)
      call net%set_lr(-1d0, stat, message)
      call check(stat /= 0 .and. index(message, "lr is -1, expected a learning rate above 0") > 0, message)
   end subroutine what_was_saved_continues

   subroutine labels_may_be_of_any_integer_kind()
      integer :: labels(n) = [0, 1, 2, 0, 1, 2]

      call fresh("momentum=0.9 nesterov=true")
      call net%train(x, labels)
      first = net%hash()
      call fresh("momentum=0.9 nesterov=true")
      call net%train(x, int(labels, int64))
      call same("int64")
      call fresh("momentum=0.9 nesterov=true loss=bce")
      call net%train(x, labels)
      call check(net%hash() /= first, "another loss, other weights")
   end subroutine labels_may_be_of_any_integer_kind

   subroutine fails(words)
      character(len=*), intent(in) :: words

      call check(stat /= 0 .and. index(message, words) > 0, "expected """//words//""", got: "//message)
      call check(index(message, "hvt_") + index(message, "NULL") == 0, "words of C: "//message)
   end subroutine fails

   integer function pages()
      integer :: unit, total

      open (newunit=unit, file="/proc/self/statm", action="read")
      read (unit, *) total, pages
      close (unit)
   end function pages

   subroutine nets_that_were_closed_hold_nothing()
      integer :: cycle, before

      before = 0
      do cycle = -20, 200/ranks**2
         if (cycle == 0) before = pages()
         call fresh("loss=mse optimizer=adam")
         call net%train(x, y)
         call net%train(x, y(:, 1), stat=stat, errmsg=message)
         call net%infer(x, got)
      end do
      call net%close()
      write (message, "(i0, a)") pages() - before, " pages of memory more after many nets"
      call check(pages() - before < 400, message)
   end subroutine nets_that_were_closed_hold_nothing

   subroutine errors_are_strings_on_every_rank()
      complex :: z(w, h, c, n)

      call fresh("loss=mse")
      call net%open("mlp", shape_of_x, MPI_COMM_WORLD, stat, message)
      call fails("the net is open already")
      call net%train(x, y(:, :n - 1), stat=stat, errmsg=message)
      call fails("targets are (3, 5), expected 18 numbers: 3 for each of 6 images")
      call net%train(x, reshape(y, [n, 3]), stat=stat, errmsg=message)
      call fails("targets are (6, 3), expected the 6 images to be the last dimension")
      call net%train(reshape(x, [h, w, c, n]), y, stat=stat, errmsg=message)
      call fails("images are (3, 4, 2, 6), expected (4, 3, 2, n)")
      call net%train(reshape(x, [n, w*h*c]), y, stat=stat, errmsg=message)
      call fails("images are (6, 24), expected")
      call net%train(x(:, :, 1, :), y, stat=stat, errmsg=message)
      call fails("images are not contiguous")
      z = (0, 0)
      call net%infer(z, got, stat, message)
      call fails("images are of an unsupported type")
      call net%train(x(:, :, :, :n - rank), y(:, :n - rank), epochs=1 + rank, stat=stat, errmsg=message)
      call check((stat == 0) .eqv. ranks == 1, "a rank with other epochs: "//message)
      if (rank == ranks - 1) then ! the others get an error, too
         call net%train(x, y(:, 1), stat=stat, errmsg=message)
      else
         call net%train(x, y, stat=stat, errmsg=message)
      end if
      call fails("targets are (3), expected 18 numbers")
      i = merge(n, 0, rank == 0)
      call net%train(x(:, :, :, :i), y(:, :i), stat=stat, errmsg=message) ! a rank without images
      call check(stat == 0, message)
      call net%close()
      call net%close()
      call net%train(x, y, stat=stat, errmsg=message)
      call fails("the net is not open: call open first")
      call net%open("mlp", shape_of_x//"momentum=much", MPI_COMM_WORLD, stat, message)
      call fails("option momentum is ""much"", expected a number")
      call net%open("mlp", shape_of_x//"loss=l1", MPI_COMM_WORLD, stat, message)
      call fails("option loss is ""l1"", expected one of: ce mse bce mae")
      call net%open("mlp", shape_of_x//"batch", MPI_COMM_WORLD, stat, message)
      call fails("option ""batch"" has no value, expected NAME=VALUE")
      call net%open("mlp", shape_of_x//"shard=1.5", MPI_COMM_WORLD, stat, message)
      call fails("option shard is ""1.5"", expected a whole number")
      call net%open("lenet", shape_of_x, MPI_COMM_WORLD, stat, message)
      call fails("lenet")
   end subroutine errors_are_strings_on_every_rank
end program test_fortran
