/*
A product of two matrices, for one type: included by products.h for each, with REAL, VECTOR, LANES and the names of
what the processor does with a vector.

A tile of the result is summed in registers: ROWS rows of VECTORS vectors, of which the second may lie over the first
where columns are left over; what both compute is the same.
*/
#define TILE static inline __attribute__((always_inline, target("avx2,fma"))) void

/* Add a piece of the sums of one tile, from 0 where the piece is the first one. */
TILE NAME(tile)(const int rows, const int vectors, const long piece, const int is_first, const REAL *a, const long a_row,
                const long a_column, const REAL *b, const long b_row, REAL *c, const long c_row, const long second,
                const int columns) {
    VECTOR sum[8][2], right[2];
    REAL rest[LANES];
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++) {
#pragma GCC unroll 2
        for (int j = 0; j < vectors; j++) {
            sum[i][j] = ZERO();
            if (!is_first && columns == LANES) sum[i][j] = LOAD(c + i * c_row + j * second);
        }
        if (!is_first && columns < LANES) {
            for (int lane = 0; lane < LANES; lane++) rest[lane] = c[i * c_row + (lane < columns ? lane : columns - 1)];
            sum[i][0] = LOAD(rest);
        }
    }
    for (long p = 0; p < piece; p++) {
#pragma GCC unroll 2
        for (int j = 0; j < vectors; j++) right[j] = LOAD(b + p * b_row + j * second);
#pragma GCC unroll 8
        for (int i = 0; i < rows; i++) {
            const VECTOR left = SPREAD(a + i * a_row + p * a_column);
#pragma GCC unroll 2
            for (int j = 0; j < vectors; j++) sum[i][j] = MULTIPLY_ADD(left, right[j], sum[i][j]);
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++) {
        if (columns < LANES) {
            STORE(rest, sum[i][0]);
            for (int lane = 0; lane < columns; lane++) c[i * c_row + lane] = rest[lane];
            continue;
        }
#pragma GCC unroll 2
        for (int j = 0; j < vectors; j++) STORE(c + i * c_row + j * second, sum[i][j]);
    }
}

#define ROWS(count, vectors)                                                                                           \
    NAME(tile)(count, vectors, piece, is_first, a + i * a_row, a_row, a_column, b, b_row, c + i * c_row, c_row, second, \
               columns)

/* Add a piece of the sums of all rows in one or two vectors of columns. */
TILE NAME(panel)(const long rows, const int vectors, const long piece, const int is_first, const REAL *a,
                 const long a_row, const long a_column, const REAL *b, const long b_row, REAL *c, const long c_row,
                 const long second, const int columns) {
    long i = 0;
    /* Eight sums at a time: the processor begins two in each cycle, and each takes four. */
    if (vectors == 1)
        for (; i + 8 <= rows; i += 8) ROWS(8, 1);
    for (; i + 4 <= rows; i += 4) ROWS(4, vectors);
    switch (rows - i) {
    case 3: ROWS(3, vectors); break;
    case 2: ROWS(2, vectors); break;
    case 1: ROWS(1, vectors); break;
    }
}

/* Copy a vector of columns of a piece to where its rows are next to each other; the last column fills what is left. */
TILE NAME(pack)(const long piece, const int columns, const REAL *b, const long b_row, const long b_column, REAL *room,
                const long room_row) {
    long p = 0;
    if (b_row == 1) {
        const REAL *each[LANES];
        for (int j = 0; j < LANES; j++) each[j] = b + (j < columns ? j : columns - 1) * b_column;
        for (; p + LANES <= piece; p += LANES) NAME(turn)(each, p, room + p * room_row, room_row);
    } else if (b_column == 1 && columns == LANES) {
        for (; p < piece; p++) STORE(room + p * room_row, LOAD(b + p * b_row));
    } else if (b_column == 1 && columns < LANES && b_row + columns >= LANES) {
        /* A vector reaches into the next row, and the last row has none. */
        for (; p + 1 < piece; p++) STORE(room + p * room_row, LAST_FILLS(LOAD(b + p * b_row), columns));
    }
    for (; p < piece; p++)
        for (int j = 0; j < LANES; j++) room[p * room_row + j] = b[p * b_row + (j < columns ? j : columns - 1) * b_column];
}

/* c = a b, each sum in the order of its terms; strides are numbers of elements, and a row of c has no gaps. */
__attribute__((target("avx2,fma"))) static void NAME(product)(
    const long rows, const long inner, const long all, const REAL *a, const long a_row, const long a_column,
    const REAL *b, const long b_row, const long b_column, REAL *c, const long c_row) {
    REAL room[2 * LANES * PIECE];
    for (long start = 0; start < all;) {
        const long left = all - start;
        const int vectors = left > LANES ? 2 : 1, columns = all < LANES ? (int)all : LANES;
        /* Columns that are left over are computed with some before them. */
        const long first = vectors == 1 && all >= LANES ? all - LANES : start;
        const long second = vectors == 1 ? 0 : left >= 2 * LANES ? LANES : left - LANES;
        for (long p = 0; p == 0 || p < inner; p += PIECE) { /* once without terms: zeros */
            const long piece = inner - p < PIECE ? inner - p : PIECE;
            const REAL *right = b + p * b_row + first * b_column, *from = a + p * a_column;
            long right_row = b_row;
            /* Rows 512 bytes apart share an eighth of the cache: copied, 60 x 41 x 128 in float64 takes 0.9 of the time. */
            const int crowded = piece > 32 && rows > 16 && b_row * (long)sizeof(REAL) % 512 == 0;
            if (b_column != 1 || columns < LANES || crowded) {
                for (int j = 0; j < vectors; j++)
                    NAME(pack)(piece, columns, right + j * second * b_column, b_row, b_column, room + j * second, 2 * LANES);
                right = room, right_row = 2 * LANES;
            }
            if (vectors == 2)
                NAME(panel)(rows, 2, piece, p == 0, from, a_row, a_column, right, right_row, c + first, c_row, second, LANES);
            else if (columns == LANES)
                NAME(panel)(rows, 1, piece, p == 0, from, a_row, a_column, right, right_row, c + first, c_row, 0, LANES);
            else
                NAME(panel)(rows, 1, piece, p == 0, from, a_row, a_column, right, right_row, c + first, c_row, 0, columns);
        }
        start += vectors * LANES;
    }
}
#undef TILE
#undef ROWS
